"""Encryption of one media session: SRTP and SRTCP by libsrtp (RFC 3711, RFC 7714)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

OVERLAP_SECONDS = 2.0
"""How long the peer's old key is still accepted after a change, for packets on their way."""


@dataclass(frozen=True, slots=True)
class SrtpKeys:
    """The keys of both directions from the SDP (RFC 4568): master keys with their salts, which are never logged."""

    send_suite: str
    """The name of the suite, such as `AES_CM_128_HMAC_SHA1_80`."""
    send: bytes = field(repr=False)
    receive_suite: str
    receive: bytes = field(repr=False)


class Transform(Protocol):
    """A function that encrypts or decrypts a packet. Raises `ValueError` for a packet that is not authentic."""

    def __call__(self, packet: bytes) -> bytes: ...


class SrtpSender:
    """The encryption of what we send."""

    def __init__(self, suite: str, key: bytes) -> None:
        """Raises `ValueError` for a suite that is not known or a key of the wrong length."""
        self.suite_and_key = (suite, key)
        # RTP is sent by the pump's thread and RTCP by the event loop: a context of libsrtp serves one thread at a time.
        self._rtp = _Context(suite, key, inbound=False)
        self._rtcp = _Context(suite, key, inbound=False)

    def protect(self, packet: bytes) -> bytes:
        return self._rtp.call("protect", packet)

    def protect_rtcp(self, packet: bytes) -> bytes:
        return self._rtcp.call("protect_rtcp", packet)


class SrtpReceiver:
    """The decryption of what the peer sends. Raises `ValueError` for a replay, and for an unauthentic packet."""

    def __init__(self, suite: str, key: bytes, previous: SrtpReceiver | None, now: float) -> None:
        """`previous` is the context before a change of keys."""
        self.suite_and_key = (suite, key)
        self._context = _Context(suite, key, inbound=True)
        self._previous = None if previous is None else previous._context
        self._previous_until = now + OVERLAP_SECONDS

    def unprotect(self, packet: bytes, now: float) -> bytes:
        return self._unprotect("unprotect", packet, now)

    def unprotect_rtcp(self, packet: bytes, now: float) -> bytes:
        return self._unprotect("unprotect_rtcp", packet, now)

    def _unprotect(self, operation: str, packet: bytes, now: float) -> bytes:
        try:
            return self._context.call(operation, packet)
        except ValueError:
            # The packet may have left the peer before it changed its key.
            if self._previous is None or now > self._previous_until:
                self._previous = None
                raise
            return self._previous.call(operation, packet)


def prepare_srtp() -> None:
    """Load the library, so that the first encrypted call does not wait for it."""
    _Context("AES_CM_128_HMAC_SHA1_80", bytes(30), inbound=True)


class _Context:
    """A session of libsrtp with one key, for one direction and one thread."""

    def __init__(self, suite: str, key: bytes, *, inbound: bool) -> None:
        # Imported here, because programs that encrypt nothing need not have the library loaded.
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
        # A packet further behind counts as a replay. The default of 64 is too small: the network reorders further.
        policy.window_size = 128
        self._error = Error
        self._session = Session(policy)

    def call(self, operation: str, packet: bytes) -> bytes:
        try:
            return bytes(getattr(self._session, operation)(packet))
        except self._error as error:
            raise ValueError(f"SRTP packet is not valid: {error}") from None
