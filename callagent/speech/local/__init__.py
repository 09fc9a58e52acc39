"""Embedded speech: Whisper and hibari in processes of their own. English, no key, no internet."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.speech.local.recognizer import LocalRecognizer, RecognizerOptions, transcribe, transcribe_wav
    from callagent.speech.local.turn_model import LocalTurnModel
    from callagent.speech.local.voice import LocalVoice

_MODULES = {
    "LocalRecognizer": "recognizer",
    "LocalTurnModel": "turn_model",
    "LocalVoice": "voice",
    "RecognizerOptions": "recognizer",
    "transcribe": "recognizer",
    "transcribe_wav": "recognizer",
}

__all__ = ["LocalRecognizer", "LocalTurnModel", "LocalVoice", "RecognizerOptions", "transcribe", "transcribe_wav"]

# Lazy, also because `python -m callagent.speech.local.voice` imports this package first: a module that is there already
# would be loaded twice.
__getattr__ = lazy_exports(__name__, _MODULES)
