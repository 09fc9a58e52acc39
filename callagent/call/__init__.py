"""One call: a leg, a turn manager and an agent, joined by one inbox."""

from __future__ import annotations

from callagent.call.call import Call
from callagent.call.recording_tap import AudioTap
from callagent.call.state import CallServices, CallSettings, CallState, Event, ProvidersFailed, SpeechMade

__all__ = [
    "AudioTap",
    "Call",
    "CallServices",
    "CallSettings",
    "CallState",
    "Event",
    "ProvidersFailed",
    "SpeechMade",
]
