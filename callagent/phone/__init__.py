"""The built-in test phone: calls a server over SIP or a carrier stream, speaks, listens, records."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.phone.command import run_phone
    from callagent.phone.figures import nearest_rank
    from callagent.phone.handset import Microphone, read_wav
    from callagent.phone.lines import Line, SipLine, StreamPhone, dial_sip

_MODULES = {
    "Line": "lines",
    "Microphone": "handset",
    "SipLine": "lines",
    "StreamPhone": "lines",
    "dial_sip": "lines",
    "nearest_rank": "figures",
    "read_wav": "handset",
    "run_phone": "command",
}

__all__ = ["Line", "Microphone", "SipLine", "StreamPhone", "dial_sip", "nearest_rank", "read_wav", "run_phone"]
__getattr__ = lazy_exports(__name__, _MODULES)
