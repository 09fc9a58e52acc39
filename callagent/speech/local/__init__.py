"""Embedded speech: Whisper and hibari in processes of their own. English, no key, no internet."""

from __future__ import annotations

from callagent.speech.local.recognizer import LocalRecognizer, RecognizerOptions
from callagent.speech.local.smart_turn import LocalTurnModel
from callagent.speech.local.transcribe import transcribe, transcribe_wav
from callagent.speech.local.voice import LocalVoice

__all__ = ["LocalRecognizer", "LocalTurnModel", "LocalVoice", "RecognizerOptions", "transcribe", "transcribe_wav"]
