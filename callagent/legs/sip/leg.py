"""A call leg over SIP and RTP: one dialog and one media session, within a trunk's settings for media."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Network, IPv6Network

from callagent import sip
from callagent.audio import dtmf_frames
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.legs import leg
from callagent.legs.sip.identity import call_info_of, clean, end_headers_and_causes
from callagent.legs.sip.transfer import DialTarget, SipTransfer
from callagent.log import get_logger
from callagent.rtp import NoTelephoneEvent, RtpParameters, RtpSession, SrtpKeys, open_codec


@dataclass(frozen=True, slots=True)
class TrunkMedia:
    """The settings of a trunk's media."""

    codecs: tuple[str, ...] = ()
    """Codecs in the order in which we offer them; empty: all that are installed."""
    encryption: sip.Encryption = sip.Encryption.ALLOWED
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks from which the trunk's media may come, besides the address in its SDP."""
    in_band_digits: bool = False
    """Whether digits are sent as tones in the audio to a peer without telephone events (RFC 4733), and tones of a peer
    with them are detected. Tones of a peer without them are always detected."""
    trusted: bool = True
    """Whether we believe the trunk's headers about the caller (RFC 3325 §4)."""


DEFAULT_MEDIA = TrunkMedia()
MediaOfTrunk = Callable[[str], TrunkMedia]
"""Return the media settings of a trunk by its name, which is empty for a peer that is no trunk."""


def default_media(_: str) -> TrunkMedia:
    """Return the defaults for every trunk."""
    return DEFAULT_MEDIA


def rtp_parameters(agreement: sip.Agreement, media: TrunkMedia) -> RtpParameters:
    """Return the parameters of RTP that were agreed on. Raises `ValueError` for a codec that is not installed."""
    # Opened for each session, because coders other than G.711 keep a state.
    codec = open_codec(agreement.codec, agreement.payload_type)
    if codec is None:
        raise ValueError(f"codec {agreement.codec} is not installed")
    keys = None
    if agreement.send_key is not None and agreement.receive_key is not None:
        own, peers = agreement.send_key, agreement.receive_key
        keys = SrtpKeys(own.suite, own.key, peers.suite, peers.key)
    parameters = RtpParameters(
        codec,
        agreement.telephone_event,
        agreement.telephone_event_rate,
        offered_payload_type=agreement.offered_payload_type,
        offered_telephone_event=agreement.offered_telephone_event,
        control=agreement.control,
        keys=keys,
        packet_frames=agreement.packet_time // sip.FRAME_TIME,
        networks=media.networks,
        in_band_digits=media.in_band_digits or agreement.telephone_event is None,
    )
    # Some peers send comfort noise without announcing it, with the static payload type.
    if agreement.comfort_noise is None:
        return parameters
    return replace(parameters, comfort_noise=agreement.comfort_noise)


HANG_UP_SECONDS = 2.0
"""How long `hang_up` waits for the peer to confirm; the BYE is still repeated after that."""

_STATUSES = {EndReason.DRAIN: 503, EndReason.ERROR: 500, EndReason.REJECTED: 603, EndReason.BUSY: 486}
_REASON_HEADERS = {
    EndReason.MEDIA_TIMEOUT: 'SIP;cause=408;text="Media timeout"',
    EndReason.DRAIN: 'SIP;cause=503;text="Server shutdown"',
    EndReason.ERROR: 'SIP;cause=500;text="Server error"',
}
_NORMAL_REASON = 'Q.850;cause=16;text="Normal call clearing"'
_END_REASONS = {
    sip.EndCause.CANCELLED: EndReason.CANCELLED,
    sip.EndCause.REMOTE: EndReason.CALLER_HANGUP,
    sip.EndCause.REFUSED: EndReason.REJECTED,
}

log = get_logger(__name__)


class LegState(Enum):
    """The state of a SIP leg."""

    RINGING = "ringing"
    ANSWERED = "answered"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class _Gone:
    """The reason why the call ended before it was confirmed.

    It is not an exception, because the leg stores it: the traceback of a stored exception would refer to the leg, which
    only the garbage collector could free then.
    """

    detail: str
    status: int
    limit: str


class SipLeg:
    """A `CallLeg` over SIP. For a call that we place, `answer` waits for the peer's answer."""

    def __init__(
        self,
        call: sip.EndpointCall,
        session: RtpSession,
        negotiation: sip.Negotiation,
        media: TrunkMedia = DEFAULT_MEDIA,
        dial_target: DialTarget | None = None,
    ) -> None:
        """Read the INVITE's offer. Raises `ValueError` if none of it can be used; otherwise the leg owns `session`."""
        self.outgoing = call.core.outgoing
        self.on_transfer_request: Callable[[str, Mapping[str, str]], None] | None = None
        """Called when the peer asks us to call a URI instead (REFER); answered by `report_transfer`. None: declined."""
        self.on_early_media: Callable[[leg.Media], None] | None = None
        """Called with the media that the peer plays before it answers our call (early media)."""
        self._call = call
        self._session = session
        self._negotiation = negotiation
        self._media = media
        self._state = LegState.RINGING
        self._answer = b""
        self._agreement: sip.Agreement | None = None
        # The answer is made before the call rings: an offer that cannot be used is refused with 488 at once.
        offer = b"" if self.outgoing else call.core.invite.body
        if offer:
            self._answer, self._agreement = negotiation.answer(offer)
        info = call_info_of(call.core.invite, outgoing=self.outgoing, trusted=media.trusted)
        self.info: CallInfo = replace(info, trunk=call.trunk)
        events = leg.LegEvents()
        self.listen, self.emit = events.listen, events.emit
        self._confirmation: asyncio.Future[bytes | _Gone] = asyncio.get_running_loop().create_future()
        self._dial_target = dial_target
        self._transfer: SipTransfer | None = None
        """Made by the first transfer: most calls have none."""
        self._digits_from: str | None = None
        """`rtp` or `info`, by which the peer's first key came."""
        self._peer_sends = True
        self._media_expected = True
        session.on_digit = lambda digit: self._receive_digit(digit, "rtp")
        session.on_timeout = self._end_without_media
        call.listen(self._receive)

    # CallLeg

    def ring(self) -> None:
        if self._state is LegState.RINGING:
            self._call.ring()

    async def answer(self) -> leg.Media:
        """Answer the peer's call, or wait until the peer answers ours. Raises `LegGone`."""
        if self._state is LegState.CLOSED:
            raise leg.LegGone("the leg has ended")
        if self._agreement is not None:
            # Our media is ready before the 200 is sent, because the peer may send as soon as it has the 200.
            self._connect(self._agreement)
            self._state = LegState.ANSWERED
            self._call.answer(self._answer)
            return self._session
        if not self.outgoing:
            # The INVITE had no offer: ours goes with the 200, and the answer comes with the ACK.
            self._call.answer(self._negotiation.offer())
        try:
            self._connect(self._negotiation.accept(await self.confirmed()))
        except ValueError as error:
            await self.hang_up(EndReason.ERROR)
            raise leg.LegGone(f"no media: {error}") from error
        self._state = LegState.ANSWERED
        return self._session

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._end(reason, headers)
        try:
            async with asyncio.timeout(HANG_UP_SECONDS):
                await self._call.closed.wait()
        except TimeoutError:
            log.info("hang_up_unconfirmed", call_id=self.info.call_id)

    async def transfer(self, target: leg.TransferTarget, audio: leg.SwitchedMedia | None = None) -> leg.TransferOutcome:
        if self._state is not LegState.ANSWERED:
            return leg.TransferOutcome(leg.TransferStatus.CALLER_GONE, "the call is not answered")
        if self._transfer is None:
            self._transfer = SipTransfer(self._dial_target)
        return await self._transfer.run(self, target, audio)

    async def send_digits(self, digits: str) -> None:
        if self._state is not LegState.ANSWERED:
            return
        try:
            await self._session.send_digits(digits)
        except NoTelephoneEvent:
            await _send_digits_without_events(digits, self._session, self._call, tones=self._media.in_band_digits)

    def expect_media(self, expected: bool) -> None:
        self._media_expected = expected
        self._session.expect(self._peer_sends and expected)

    # Beyond CallLeg, for phones and transfers

    @property
    def call(self) -> sip.EndpointCall:
        return self._call

    async def confirmed(self) -> bytes:
        """Wait for the peer's answer, or its ACK of ours, and return the body. Raises `LegGone`."""
        # Shielded, because several may wait: a cancelled transfer must not cancel the future of the others.
        outcome = await asyncio.shield(self._confirmation)
        if isinstance(outcome, _Gone):
            raise leg.LegGone(outcome.detail, outcome.status, outcome.limit)
        return outcome

    def leave(self, reason: EndReason) -> None:
        """Hang up without waiting for the peer to confirm. Idempotent."""
        self._end(reason, NO_HEADERS)

    def report_transfer(self, status: int) -> None:
        """Report the outcome of the call that the peer asked for by REFER; 200 if it was answered."""
        self._call.report_transfer(status)

    # Events and end

    def _receive(self, event: sip.Event) -> None:
        match event:
            case sip.CallAnswered(body=body) | sip.CallConfirmed(body=body):
                # The first body wakes `confirmed`; a later one answers an offer of ours.
                if not self._confirmation.done():
                    self._confirmation.set_result(body)
                elif body:
                    self._apply_answer(body)
            case sip.CallReplaced(by=by):
                self._replace_call(self._call.successor(by))
            case sip.CallRinging(body=body) if body and self.on_early_media is not None:
                self._apply_answer(body)
                self.on_early_media(self._session)
            case sip.OfferReceived(body=body):
                self._renegotiate(body)
            case sip.OfferAnswered(body=body):
                self._apply_answer(body)
            case sip.DigitReceived(digit=digit):
                self._receive_digit(digit, "info")
            case sip.TransferProgressed() if self._transfer is not None:
                self._transfer.report_progress(event)
            case sip.TransferRequested(target=target, headers=headers):
                self._request_transfer(target, dict(headers))
            case sip.CallEnded():
                self._handle_end(event)
            case _:
                pass

    def _renegotiate(self, offer: bytes) -> None:
        """Answer the offer of a re-INVITE or UPDATE; one that is refused leaves the media as it is (RFC 3264 §8)."""
        if not offer:
            self._call.accept_offer(self._negotiation.offer())
            return
        try:
            answer, agreement = self._negotiation.answer(offer)
        except ValueError as error:
            log.info("offer_refused", call_id=self.info.call_id, why=str(error))
            self._call.refuse_offer(488 if isinstance(error, sip.NotAcceptable) else 400)
            return
        self._connect(agreement)
        self._call.accept_offer(answer)

    def _replace_call(self, call: sip.EndpointCall) -> None:
        """Continue the conversation with another peer, whose call replaces this one (RFC 3891)."""
        offer = call.core.invite.body
        try:
            if self._state is not LegState.ANSWERED:
                raise sip.NotAcceptable("the leg is not answered")
            body, agreement = self._negotiation.answer(offer) if offer else (self._negotiation.offer(), None)
        except ValueError as error:
            log.info("replacement_refused", call_id=self.info.call_id, why=str(error))
            call.listen(_ignore)
            call.hang_up(status=488)
            return
        old, self._call = self._call, call
        # The end of the replaced call must not be taken for the end of this leg.
        old.listen(_ignore)
        call.listen(self._receive)
        if agreement is not None:
            self._connect(agreement)
        call.answer(body)
        old.hang_up()

    def _apply_answer(self, answer: bytes) -> None:
        try:
            self._connect(self._negotiation.accept(answer))
        except ValueError as error:
            log.warning("answer_not_usable", call_id=self.info.call_id, why=str(error))

    def _connect(self, agreement: sip.Agreement) -> None:
        # Without a remote address the peer holds us: the previous agreement stays until the peer resumes.
        if agreement.remote is not None:
            self._session.connect(agreement.remote, rtp_parameters(agreement, self._media))
        self._session.hold(agreement.is_held)
        self._peer_sends = agreement.direction.receives
        self._session.expect(self._peer_sends and self._media_expected)

    def _receive_digit(self, digit: str, source: str) -> None:
        # Some gateways send each key both by RTP and by INFO, so only the source of the first key counts.
        self._digits_from = self._digits_from or source
        if self._digits_from != source or (self._transfer is not None and self._transfer.forward_digit(digit)):
            return
        self.emit(leg.DigitPressed(digit))

    def _request_transfer(self, target: sip.Uri, headers: Mapping[str, str]) -> None:
        if self.on_transfer_request is None:
            self._call.report_transfer(603)
        else:
            self.on_transfer_request(str(target), headers)

    def _end_without_media(self, detail: str) -> None:
        if self._state is not LegState.CLOSED:
            self._end(EndReason.MEDIA_TIMEOUT, NO_HEADERS)
            self.emit(leg.LegFailed(EndReason.MEDIA_TIMEOUT, detail))

    def _handle_end(self, event: sip.CallEnded) -> None:
        """Close the leg after the end of the call, and report the end unless it was ours."""
        if self._state is LegState.CLOSED:
            return
        detail = clean(f"{event.status} {event.reason}").strip() if event.status else event.cause.value
        limit = ""
        if event.call.attempts_spent:
            detail, limit = f"{detail}, after as many attempts as limits.transfer_attempts allows", "transfer_attempts"
        self._close(detail, event.status, limit)
        reason = _END_REASONS.get(event.cause)
        if reason is None:
            self.emit(leg.LegFailed(EndReason.ERROR, f"SIP {detail}"))
        else:
            self.emit(leg.CallerHungUp(reason, *end_headers_and_causes(event.headers, trusted=self._media.trusted)))

    def _end(self, reason: EndReason, headers: Mapping[str, str]) -> None:
        if self._state is LegState.CLOSED:
            return
        self._close(reason.value)
        given = {"Reason": _REASON_HEADERS.get(reason, _NORMAL_REASON), **headers}
        try:
            self._call.hang_up(status=_STATUSES.get(reason, 480), headers=given)
        except ValueError as error:
            # The headers come from a project. If they are not valid, the call is ended without them.
            log.warning("headers_not_usable", call_id=self.info.call_id, why=str(error))
            self._call.hang_up(status=_STATUSES.get(reason, 480))

    def _close(self, detail: str, status: int = 0, limit: str = "") -> None:
        """Free the media, and wake the tasks that wait for the peer or for a transfer."""
        self._state = LegState.CLOSED
        self._session.close()
        if self._transfer is not None:
            self._transfer.abandon(detail)
        if not self._confirmation.done():
            self._confirmation.set_result(_Gone(detail, status, limit))


async def _send_digits_without_events(digits: str, session: RtpSession, call: sip.EndpointCall, *, tones: bool) -> None:
    """Send digits to a peer that accepts no telephone events: as tones in the audio, or by INFO."""
    if tones:
        await session.send_tones(tuple(dtmf_frames(digits)))
        return
    for digit in digits:
        call.send_digit(digit)


def _ignore(event: sip.Event) -> None:
    """Ignore the events of a call that is no longer this leg's."""
