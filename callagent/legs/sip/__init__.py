"""Call legs over SIP and RTP."""

from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import MediaOfTrunk, SipLeg, TrunkMedia, any_trunk

__all__ = ["MediaOfTrunk", "SipLeg", "SipLegFactory", "TrunkMedia", "any_trunk"]
