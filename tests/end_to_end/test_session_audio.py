"""A client of the Session API speaks with an app: audio both ways over the WebSocket, from a server of its own."""

from __future__ import annotations

import asyncio
import audioop
import base64
import hashlib
import json
import os
import sys
import wave
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse

from tests.agents.cx.support import DESK
from tests.end_to_end.scripted import WORDS, scripts, until
from tests.end_to_end.server_process import ServerProcess, serve

pytestmark = pytest.mark.end_to_end

HEARD = ["My account.", "A person, please."]
THOUGHT: list[dict[str, Any]] = [
    {"expect": {"last_user": "^123$"}, "calls": [{"name": "read_meter", "arguments": {"number": "123"}}]},
    {"text": "It stands at four hundred and seventeen."},
]
LONG = "I explain this bill from its first line to its last. " * 8
START = {"event": {"event": "session_start"}}


def words_as(encoding: str, rate: int) -> bytes:
    """Somebody says something, in that form."""
    with wave.open(str(WORDS)) as file:
        pcm = audioop.ratecv(file.readframes(file.getnframes()), 2, 1, file.getframerate(), rate, None)[0]
    return encoded(pcm, encoding)


def encoded(pcm: bytes, encoding: str) -> bytes:
    match encoding:
        case "MULAW":
            return audioop.lin2ulaw(pcm, 2)
        case "ALAW":
            return audioop.lin2alaw(pcm, 2)
    return pcm


def loudness(audio: bytes, encoding: str) -> int:
    match encoding:
        case "MULAW":
            audio = audioop.ulaw2lin(audio, 2)
        case "ALAW":
            audio = audioop.alaw2lin(audio, 2)
    return audioop.rms(audio, 2)


class Client:
    """Speaks the API; sends silence between its words, as a microphone does."""

    def __init__(self, ws: ClientWebSocketResponse, encoding: str = "LINEAR16", rate: int = 16000) -> None:
        self.ws = ws
        self.encoding, self.rate = encoding, rate
        self.messages: list[tuple[float, dict[str, Any]]] = []
        self._to_say = b""
        self._silence = encoded(bytes(rate // 10 * 2), encoding)

    async def send(self, **given: Any) -> None:
        await self.ws.send_str(json.dumps({"realtimeInput": given}))

    def say(self) -> None:
        self._to_say += words_as(self.encoding, self.rate)

    async def listen(self) -> None:
        async for message in self.ws:
            self.messages.append((monotonic(), json.loads(message.data)))

    async def microphone(self) -> None:
        size = len(self._silence)
        due = monotonic()
        while not self.ws.closed:
            chunk, self._to_say = self._to_say[:size].ljust(size, self._silence[:1]), self._to_say[size:]
            await self.send(audio=base64.b64encode(chunk).decode())
            due += 0.1
            await asyncio.sleep(max(0.0, due - monotonic()))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message[kind] for _, message in self.messages if kind in message]

    @property
    def completed(self) -> list[int]:
        return [output["turnIndex"] for output in self.of("sessionOutput") if output.get("turnCompleted")]

    def texts(self, turn: int) -> list[str]:
        outputs = [output for output in self.of("sessionOutput") if output.get("turnIndex") == turn]
        return [output["text"] for output in outputs if "text" in output]

    def audio(self, turn: int) -> bytes:
        outputs = [output for output in self.of("sessionOutput") if output.get("turnIndex") == turn]
        return b"".join(base64.b64decode(output["audio"]) for output in outputs if "audio" in output)

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        await until(condition, seconds, lambda: f"got {[message for _, message in self.messages][-4:]}")

    async def hears_turn(self, turn: int) -> None:
        await self.until(lambda: turn in self.completed)


@asynccontextmanager
async def client(
    server: ServerProcess, identifier: str = "session-1", encoding: str = "LINEAR16", rate: int = 16000, **more: Any
) -> AsyncIterator[Client]:
    form = {"audioEncoding": encoding, "sampleRateHertz": rate}
    session = f"projects/p/locations/us/apps/City_Utilities/sessions/{identifier}"
    config = {"session": session, "inputAudioConfig": form, "outputAudioConfig": form, **more}
    place = "google.cloud.ces.v1.SessionService/BidiRunSession/locations/us"
    async with (
        ClientSession(headers=server.login) as http,
        http.ws_connect(f"http://127.0.0.1:{server.http_port}/ws/{place}") as ws,
    ):
        await ws.send_str(json.dumps({"config": config}))
        speaking = Client(ws, encoding, rate)
        tasks = [asyncio.create_task(speaking.listen()), asyncio.create_task(speaking.microphone())]
        try:
            yield speaking
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def desk(folder: Path, heard: list[str], thought: list[dict[str, Any]], token: str = "") -> Iterator[ServerProcess]:
    config = folder / "callagent.toml"
    account = '[[users]]\nname = "client"\nrights = ["call"]\ntoken = "{}"\n'
    config.write_text(account.format(hashlib.sha256(token.encode()).hexdigest()) if token else "")
    settings = scripts(folder, heard, thought)
    with serve(folder, "--http", "127.0.0.1:0", "--config", str(config), project=DESK, **settings) as server:
        yield server
    assert "Traceback" not in server.errors.read_text()


@pytest.mark.parametrize(("encoding", "rate"), [("LINEAR16", 16000), ("MULAW", 8000), ("ALAW", 24000)])
async def test_a_client_speaks_keys_and_is_told_of_the_end(tmp_path: Path, encoding: str, rate: int) -> None:
    with desk(tmp_path, HEARD, THOUGHT) as server:
        async with client(server, encoding=encoding, rate=rate) as caller:
            await caller.send(**START)
            await caller.hears_turn(1)
            caller.say()
            await caller.hears_turn(2)
            await caller.send(dtmf="123#")
            await caller.hears_turn(3)
            caller.say()
            await caller.until(lambda: caller.ws.closed)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert [caller.texts(turn) for turn in (1, 2, 3, 4)] == [
        ["City utilities, hello."],
        ["Enter your number."],
        ["It stands at four hundred and seventeen."],
        ["I put you through."],
    ]
    for turn in (1, 2, 3, 4):
        text = " ".join(caller.texts(turn))
        seconds = len(caller.audio(turn)) / rate / (2 if encoding == "LINEAR16" else 1)
        # The scripted voice takes 0.03 s for each letter.
        assert seconds == pytest.approx(0.03 * len(text), abs=0.25), text
        assert loudness(caller.audio(turn), encoding) > 1000
    assert caller.completed == [1, 2, 3, 4]
    assert [result["transcript"] for result in caller.of("recognitionResult")] == HEARD
    assert caller.of("interruptionSignal") == []
    (ended,) = caller.of("endSession")
    assert (ended["metadata"]["reason"], ended["metadata"]["session_escalated"]) == ("person", True)
    (chunk,) = next(output for output in caller.of("sessionOutput") if output.get("turnCompleted") and
                    output["turnIndex"] == 3)["diagnosticInfo"]["messages"][0]["chunks"][:1]  # fmt: skip
    assert chunk["toolCall"]["displayName"] == "read_meter"
    assert (record["wire"], record["channel"], record["end_reason"]) == ("session", "VOICE-API", "handoff")
    assert record["peer_call_id"].endswith("session-1")
    assert [turn["user_input"] for turn in record["turns"][1:]] == [START_WORDS, "My account.", "", "A person, please."]
    assert [turn["agent_response"] for turn in record["turns"][1:3]] == ["City utilities, hello.", "Enter your number."]


START_WORDS = "<event>session start</event>"


async def test_a_client_interrupts_and_is_told_to_be_silent(tmp_path: Path) -> None:
    thought: list[dict[str, Any]] = [{"text": LONG.strip()}, {"text": "As you like."}, {"text": "In writing too."}]
    with desk(tmp_path, ["My bill.", "Stop it."], thought) as server:
        async with client(server) as caller:
            await caller.send(**START)
            await caller.hears_turn(1)
            caller.say()
            await caller.until(lambda: len(caller.audio(2)) > 2 * 16000)
            caller.say()
            await caller.until(lambda: caller.of("interruptionSignal"))
            before = len(caller.audio(2))
            await caller.hears_turn(3)
            assert len(caller.audio(2)) == before < 0.03 * len(LONG) * 32000
            await caller.send(text="Write it ", willContinue=True)
            await caller.send(text="down.")
            await caller.hears_turn(4)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert caller.of("interruptionSignal") == [{"bargeIn": True}]
    assert caller.texts(3) == ["As you like."]
    assert caller.texts(4) == ["In writing too."]
    # What is written is not recognised, and is no interruption of the silent.
    assert [result["transcript"] for result in caller.of("recognitionResult")] == ["My bill.", "Stop it."]
    assert [turn["user_input"] for turn in record["turns"][2:]] == ["My bill.", "Stop it.", "Write it down."]
    assert record["turns"][2]["barge_in"]
    assert LONG.startswith(record["turns"][2]["agent_response"])
    assert record["end_reason"] == "caller_hangup"


async def test_the_published_client_speaks_with_us_as_it_is(tmp_path: Path) -> None:
    """`CALLAGENT_CXAS_SCRAPI`: a folder with cxas-scrapi and what it needs (`pip install --target`)."""
    if not (site := os.environ.get("CALLAGENT_CXAS_SCRAPI")):
        pytest.skip("CALLAGENT_CXAS_SCRAPI names no folder")
    words = tmp_path / "words.wav"
    with wave.open(str(words), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(words_as("LINEAR16", 16000))
    script = Path(__file__).with_name("published_session_client.py")
    token = "a-long-random-word"
    with desk(tmp_path, HEARD, THOUGHT, token) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), f"ws://127.0.0.1:{server.http_port}", token, str(words),
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": site},
        )  # fmt: skip
        async with asyncio.timeout(180):
            output, _ = await process.communicate()
    found = json.loads(output)
    several = found["all_at_once"]
    assert (several["texts"], several["completed"]) == (["City utilities, hello.", "Enter your number."], [1, 2])
    *turns, end = found["turn_by_turn"]
    assert [turn["texts"] for turn in turns] == [
        ["City utilities, hello."],
        ["Enter your number."],
        ["It stands at four hundred and seventeen."],
        ["I put you through."],
    ]
    assert [turn["completed"] for turn in turns] == [[1], [2], [3], [4]]
    for turn in [several, *turns]:
        assert turn["seconds"] == pytest.approx(0.03 * sum(map(len, turn["texts"])), abs=0.3)
    assert end["ended"]
    assert end["metadata"]["reason"] == "person"


async def test_a_whole_utterance_is_asked_and_answered_in_one_request(tmp_path: Path) -> None:
    form = {"audioEncoding": "ALAW", "sampleRateHertz": 16000}
    path = "projects/p/locations/us/apps/City_Utilities/sessions/session-1"
    config = {"inputAudioConfig": form, "outputAudioConfig": form}
    audio = base64.b64encode(words_as("ALAW", 16000)).decode()
    with desk(tmp_path, ["My account."], []) as server:
        url = f"http://127.0.0.1:{server.http_port}/v1/{path}:runSession"
        body = {"config": config, "inputs": [{"audio": audio}]}
        async with ClientSession(headers=server.login) as http, http.post(url, json=body) as answer:
            spoken, last = (await answer.json())["outputs"]
    assert last["text"] == "Enter your number."
    sound = base64.b64decode(spoken["audio"])
    assert len(sound) / 16000 == pytest.approx(0.03 * len(last["text"]), abs=0.1)
    assert loudness(sound, "ALAW") > 1000
