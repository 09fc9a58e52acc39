"""Google's published client of sessions with audio, run with its own packages: `python THIS URL TOKEN WAV`.

It prints what it heard as JSON.

Of `cxas_scrapi` only the address is replaced: it knows no server without TLS.
"""

from __future__ import annotations

import json
import sys
import time
import wave
from types import SimpleNamespace
from typing import Any

from cxas_scrapi.core import sessions
from google.cloud.ces_v1beta import types

SESSION = "projects/p/locations/us/apps/City_Utilities/sessions/"


def config(identifier: str) -> dict[str, Any]:
    form = {"audio_encoding": types.AudioEncoding.LINEAR16, "sample_rate_hertz": sessions.SAMPLE_RATE}
    return {
        "session": SESSION + identifier,
        "input_audio_config": types.InputAudioConfig(**form),
        "output_audio_config": types.OutputAudioConfig(**form),
    }


def told(outputs: Any) -> dict[str, Any]:
    return {
        "texts": [output.text for output in outputs if output.text],
        "seconds": sum(len(output.audio) for output in outputs) / sessions.SAMPLE_RATE / sessions.SAMPLE_WIDTH,
        "completed": [output.turn_index for output in outputs if output.turn_completed],
    }


def all_at_once(token: str, words: bytes) -> dict[str, Any]:
    """Its mode for a fixed list of inputs."""
    inputs = [{"event": {"event": "session_start"}}, {"audio": {"audio": words}}]
    handler = sessions.BidiSessionHandler("us", token, config("several-turns"), inputs)
    return told(handler.run().outputs)


def turn_by_turn(token: str, words: bytes) -> list[dict[str, Any]]:
    """Its mode for simulated callers: the connection stays, silence is sent between turns."""
    client = SimpleNamespace(location="us", token=token, rate_limiter=None)
    session = sessions.BidiInteractiveSession(client, "turn-by-turn", config("turn-by-turn"))
    session.start()
    turns = [session.send_turn("event: session_start"), session.send_turn("", audio_bytes=words)]
    turns.append(session.send_turn("dtmf: 123#"))
    results = [told(turn.outputs) for turn in turns]
    last = session.send_turn("", audio_bytes=words)
    results.append(told(last.outputs))
    end = session.response_queue.get(timeout=20)
    results.append({"ended": end["session_ended"], "metadata": dict(end["end_session"].metadata)})
    time.sleep(0.5)
    session.close()
    return results


def main() -> None:
    url, token, path = sys.argv[1:]
    sessions.BIDI_SESSION_URI = url + "/ws/google.cloud.ces.v1.SessionService/BidiRunSession/locations/"
    with wave.open(path) as file:
        words = file.readframes(file.getnframes())
    print(json.dumps({"all_at_once": all_at_once(token, words), "turn_by_turn": turn_by_turn(token, words)}))  # noqa: T201


if __name__ == "__main__":
    main()
