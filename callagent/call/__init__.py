"""One call: a leg, a turn manager and an agent, joined by one inbox."""

from callagent.call.call import Call
from callagent.call.recording_tap import AudioTap
from callagent.call.state import (
    END_FUNCTION_ATTEMPTS,
    CallServices,
    CallSettings,
    CallState,
    Event,
    ProvidersFailed,
    SpeechMade,
)

__all__ = [
    "END_FUNCTION_ATTEMPTS",
    "AudioTap",
    "Call",
    "CallServices",
    "CallSettings",
    "CallState",
    "Event",
    "ProvidersFailed",
    "SpeechMade",
]
