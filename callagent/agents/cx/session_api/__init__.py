"""Sessions of the Session API: inputs and outputs in its form, as text and as a call. There are no sockets here."""

from __future__ import annotations

from callagent.agents.cx.session_api.session import CxSession, InputRefused, NotFound, Speak, event_words, whole_turns
from callagent.agents.cx.session_api.spoken_session import TOOL_ANSWERS, SpokenProject, SpokenSession

__all__ = [
    "TOOL_ANSWERS",
    "CxSession",
    "InputRefused",
    "NotFound",
    "Speak",
    "SpokenProject",
    "SpokenSession",
    "event_words",
    "whole_turns",
]
