"""SRTP and SRTCP (RFC 3711, RFC 7714) of one media session, by libsrtp."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

OVERLAP_SECONDS = 2.0
"""After a change of the peer's key the old one still counts for packets on their way."""


@dataclass(frozen=True, slots=True)
class SrtpKeys:
    """What both sides said (RFC 4568). Master keys with their salts; never logged."""

    send_suite: str
    """`AES_CM_128_HMAC_SHA1_80` …"""
    send: bytes = field(repr=False)
    receive_suite: str
    receive: bytes = field(repr=False)


class Transform(Protocol):
    """A direction's protection of a packet. Raises `ValueError` for a packet that is not authentic."""

    def __call__(self, packet: bytes) -> bytes: ...


class SrtpSender:
    """Protects what we send. RTP and RTCP run on two threads and so have a context each."""

    def __init__(self, suite: str, key: bytes) -> None:
        """Raises `ValueError` for a suite that is not known or a key of the wrong length."""
        self.is_of = (suite, key)
        self._rtp = _Context(suite, key, inbound=False)
        self._rtcp = _Context(suite, key, inbound=False)

    def protect(self, packet: bytes) -> bytes:
        return self._rtp.call("protect", packet)

    def protect_rtcp(self, packet: bytes) -> bytes:
        return self._rtcp.call("protect_rtcp", packet)


class SrtpReceiver:
    """Opens what the peer sends; both raise `ValueError` for what is not the peer's, a replay included."""

    def __init__(self, suite: str, key: bytes, previous: SrtpReceiver | None, now: float) -> None:
        """`previous` is the context before a change of keys."""
        self.is_of = (suite, key)
        self._context = _Context(suite, key, inbound=True)
        self._previous = None if previous is None else previous._context
        self._previous_until = now + OVERLAP_SECONDS

    def unprotect(self, packet: bytes, now: float) -> bytes:
        return self._open("unprotect", packet, now)

    def unprotect_rtcp(self, packet: bytes, now: float) -> bytes:
        return self._open("unprotect_rtcp", packet, now)

    def _open(self, verb: str, packet: bytes, now: float) -> bytes:
        try:
            return self._context.call(verb, packet)
        except ValueError:
            if self._previous is None or now > self._previous_until:
                self._previous = None
                raise
            return self._previous.call(verb, packet)


def prepare_srtp() -> None:
    """Load the library: the first call that is encrypted does not wait for it."""
    _Context("AES_CM_128_HMAC_SHA1_80", bytes(30), inbound=True)


class _Context:
    def __init__(self, suite: str, key: bytes, *, inbound: bool) -> None:
        # Imported here: phones and tools that encrypt nothing do without.
        from pylibsrtp import Error, Policy, Session

        profiles = {
            "AES_CM_128_HMAC_SHA1_80": (Policy.SRTP_PROFILE_AES128_CM_SHA1_80, 30),
            "AES_CM_128_HMAC_SHA1_32": (Policy.SRTP_PROFILE_AES128_CM_SHA1_32, 30),
            "AEAD_AES_128_GCM": (Policy.SRTP_PROFILE_AEAD_AES_128_GCM, 28),
            "AEAD_AES_256_GCM": (Policy.SRTP_PROFILE_AEAD_AES_256_GCM, 44),
        }
        profile, length = profiles.get(suite, (0, 0))
        if not length or len(key) != length:
            raise ValueError(f"SRTP key for '{suite}' is not valid")
        kind = Policy.SSRC_ANY_INBOUND if inbound else Policy.SSRC_ANY_OUTBOUND
        policy = Policy(key=key, ssrc_type=kind, srtp_profile=profile)
        # Losses and reordering of the network reach further than the default of 64 packets.
        policy.window_size = 128
        self._error = Error
        self._session = Session(policy)

    def call(self, verb: str, packet: bytes) -> bytes:
        try:
            return bytes(getattr(self._session, verb)(packet))
        except self._error as error:
            raise ValueError(f"SRTP packet is not valid: {error}") from None
