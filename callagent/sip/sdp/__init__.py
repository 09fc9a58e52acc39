"""Session descriptions, and the offers and answers of a call (RFC 8866, RFC 3264)."""

from callagent.sip.sdp.offer_answer import FRAME_TIME, Agreement, Encryption, MediaPolicy, Negotiation, NotAcceptable

__all__ = [
    "FRAME_TIME",
    "Agreement",
    "Encryption",
    "MediaPolicy",
    "Negotiation",
    "NotAcceptable",
]
