"""Call legs: one contract, whatever the wire."""

from __future__ import annotations

from callagent.legs.browser_leg import BrowserLeg
from callagent.legs.carrier_leg import CarrierLeg
from callagent.legs.leg import CallLeg, LegGone, Media, TransferOutcome, TransferStatus, TransferTarget
from callagent.legs.sip_leg import SipLeg
from callagent.legs.sip_legs import SipLegs
from callagent.legs.sip_media import MediaOfTrunk, TrunkMedia, any_trunk

__all__ = [
    "BrowserLeg",
    "CallLeg",
    "CarrierLeg",
    "LegGone",
    "Media",
    "MediaOfTrunk",
    "SipLeg",
    "SipLegs",
    "TransferOutcome",
    "TransferStatus",
    "TransferTarget",
    "TrunkMedia",
    "any_trunk",
]
