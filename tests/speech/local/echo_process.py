"""An inference process without a model: it answers with what it was asked, or misbehaves as told."""

from __future__ import annotations

import os
import time
from pathlib import Path

from callagent.errors import UserError
from callagent.speech.local import process, wire


def load_voice(settings: wire.LoadVoice) -> process.Serve:
    def serve(request: wire.Request) -> wire.Answer:
        assert isinstance(request, wire.Speak)
        match request.text.split():
            case ["die"]:
                os._exit(1)
            case ["hang"]:
                time.sleep(60)
            case ["fail"]:
                raise KeyError("no such sound")
            case ["wait", file]:
                while not Path(file).exists():
                    time.sleep(0.005)
        return wire.Spoken(request.number, request.text.encode(), ((request.text, 0.0, 1.0),))

    return serve


def load_recognizer(settings: wire.LoadRecognizer) -> process.Serve:
    if settings.whisper_dir == "missing":
        raise UserError("missing: not a model")
    if settings.whisper_dir == "dies":
        os._exit(1)

    def serve(request: wire.Request) -> wire.Answer:
        assert isinstance(request, wire.Transcribe)
        if request.expected == "die":
            os._exit(1)
        kind = "final" if request.final else "partial"
        text = f"{kind} {len(request.pcm) / 16000:.1f}s {request.language} {request.expected}".strip()
        return wire.Transcribed(request.number, (text, "another"), 0.5)

    return serve


if __name__ == "__main__":
    process.run(wire.LoadRecognizer, load_recognizer, lambda settings: settings.threads)
