"""Carriers that bring calls over media streams, behind three protocols: `CarrierDialect`, `CallControl`, `Markup`.

The front door is light: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.carriers.media import FrameClock
    from callagent.carriers.stream import CLOSE_SECONDS, MediaSocket, MessageRate
    from callagent.carriers.table import CARRIERS, open_carriers

_MODULES = {
    "CARRIERS": "table",
    "CLOSE_SECONDS": "stream",
    "FrameClock": "media",
    "MediaSocket": "stream",
    "MessageRate": "stream",
    "open_carriers": "table",
}

__all__ = ["CARRIERS", "CLOSE_SECONDS", "FrameClock", "MediaSocket", "MessageRate", "open_carriers"]

__getattr__ = lazy_exports(__name__, _MODULES)
