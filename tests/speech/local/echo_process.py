"""An inference process without a model: it answers with what it was asked, or misbehaves as told."""

from __future__ import annotations

import os
import time
from pathlib import Path

from callagent.errors import UserError
from callagent.speech.local import inference


def load_voice(settings: inference.LoadVoice) -> inference.Serve:
    def serve(request: inference.Request) -> inference.Answer:
        assert isinstance(request, inference.Speak)
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
        return inference.Spoken(request.number, request.text.encode(), ((request.text, 0.0, 1.0),))

    return serve


def load_recognizer(settings: inference.LoadRecognizer) -> inference.Serve:
    if settings.whisper_dir == "missing":
        raise UserError("missing: not a model")
    if settings.whisper_dir == "dies":
        os._exit(1)

    def serve(request: inference.Request) -> inference.Answer:
        assert isinstance(request, inference.Transcribe)
        if request.expected == "die":
            os._exit(1)
        kind = "final" if request.final else "partial"
        text = f"{kind} {len(request.pcm) / 16000:.1f}s {request.language} {request.expected}".strip()
        return inference.Transcribed(request.number, (text, "another"), 0.5)

    return serve


if __name__ == "__main__":
    inference.run(inference.LoadRecognizer, load_recognizer, lambda settings: settings.threads)
