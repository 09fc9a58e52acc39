"""The built-in test phone: calls a server over SIP or a carrier stream, speaks, listens, records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.phone.command import run_phone
    from callagent.phone.figures import nearest_rank
    from callagent.phone.line import Line
    from callagent.phone.mouth import Mouth, read_wav
    from callagent.phone.sip import SipLine, dial_sip
    from callagent.phone.stream import StreamPhone

_MODULES = {
    "Line": "line",
    "Mouth": "mouth",
    "SipLine": "sip",
    "StreamPhone": "stream",
    "dial_sip": "sip",
    "nearest_rank": "figures",
    "read_wav": "mouth",
    "run_phone": "command",
}

__all__ = [
    "Line",
    "Mouth",
    "SipLine",
    "StreamPhone",
    "dial_sip",
    "nearest_rank",
    "read_wav",
    "run_phone",
]
__getattr__ = lazy_exports(__name__, _MODULES)
