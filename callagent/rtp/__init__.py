"""Media over RTP: sockets, the sending clock, G.711, key presses, loss."""

from __future__ import annotations

from callagent.rtp.codec import PCMA, PCMU, Codec, codec_by_name
from callagent.rtp.packet import RtpPacket
from callagent.rtp.ports import PortsExhausted, RtpPorts
from callagent.rtp.pump import Pump, PumpHandle
from callagent.rtp.sender import RtpSender
from callagent.rtp.session import NoTelephoneEvent, RtpSession
from callagent.rtp.timeout import RtpSettings

__all__ = [
    "PCMA",
    "PCMU",
    "Codec",
    "NoTelephoneEvent",
    "PortsExhausted",
    "Pump",
    "PumpHandle",
    "RtpPacket",
    "RtpPorts",
    "RtpSender",
    "RtpSession",
    "RtpSettings",
    "codec_by_name",
]
