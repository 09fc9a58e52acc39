"""Media over RTP: sockets, the sending clock, codecs, encryption, key presses, loss."""

from callagent.rtp.codec import PCMA, PCMU, Codec, RtpParameters, available_codecs, open_codec
from callagent.rtp.packet import RtpPacket, is_rtcp
from callagent.rtp.pump import Pump, PumpHandle
from callagent.rtp.sender import RtpSender
from callagent.rtp.session import NoTelephoneEvent, PortsExhausted, RtpPorts, RtpSession, RtpSettings
from callagent.rtp.srtp import SrtpKeys, prepare_srtp

__all__ = [
    "PCMA",
    "PCMU",
    "Codec",
    "NoTelephoneEvent",
    "PortsExhausted",
    "Pump",
    "PumpHandle",
    "RtpPacket",
    "RtpParameters",
    "RtpPorts",
    "RtpSender",
    "RtpSession",
    "RtpSettings",
    "SrtpKeys",
    "available_codecs",
    "is_rtcp",
    "open_codec",
    "prepare_srtp",
]
