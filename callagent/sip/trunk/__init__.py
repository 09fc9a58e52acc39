"""Registration at trunks, and whether they can be reached."""

from callagent.sip.trunk.trunks import Trunks, TrunkSettings, trunk_metrics

__all__ = [
    "TrunkSettings",
    "Trunks",
    "trunk_metrics",
]
