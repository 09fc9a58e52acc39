"""Call legs over SIP and RTP."""

from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import MediaOfTrunk, SipLeg, TrunkMedia, default_media

__all__ = ["MediaOfTrunk", "SipLeg", "SipLegFactory", "TrunkMedia", "default_media"]
