"""`python -m callagent.speech.local.recognizer_process FD`: Whisper for all calls of one core."""

from __future__ import annotations

from pathlib import Path

from callagent.audio import SAMPLE_RATE
from callagent.speech.local import process, weights, wire

WINDOWS = (8.0, 12.0, 20.0, 30.0)
"""Of partials, by the small model; the larger one needs 12 s."""


def load(settings: wire.LoadRecognizer) -> process.Serve:
    from callagent.speech.local.whisper import Decoding, Whisper

    cache = Path(settings.cache)
    finals = Whisper(weights.final_model(settings.whisper_dir, cache), settings.threads)
    small = weights.partial_model(cache)
    partials = Whisper(small, settings.threads) if small else finals
    best = Decoding(beam=settings.beam)
    quick = Decoding(beam=1, windows=WINDOWS if small else WINDOWS[1:], alternatives=1)

    def serve(request: wire.Request) -> wire.Answer:
        if not isinstance(request, wire.Transcribe):
            raise ValueError(f"{type(request).__name__} is not for a recogniser")
        if request.final:
            heard = finals.transcribe(request.pcm, best, request.language, request.expected)
        else:
            # The small model writes worse, not better, after an expected answer.
            heard = partials.transcribe(request.pcm, quick, request.language)
        return wire.Transcribed(request.number, heard.texts, heard.confidence)

    # The first decoding allocates what the later ones use.
    for final in (True, False):
        serve(wire.Transcribe(0, bytes(2 * SAMPLE_RATE), final))
    return serve


if __name__ == "__main__":
    process.run(wire.LoadRecognizer, load, lambda settings: settings.threads)
