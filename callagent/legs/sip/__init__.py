"""Call legs over SIP and RTP."""

from __future__ import annotations

from callagent.legs.sip.factory import SipLegs
from callagent.legs.sip.leg import SipLeg
from callagent.legs.sip.media import MediaOfTrunk, TrunkMedia, any_trunk

__all__ = ["MediaOfTrunk", "SipLeg", "SipLegs", "TrunkMedia", "any_trunk"]
