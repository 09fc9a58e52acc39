"""The readers of what comes from the network. A target takes any bytes; what it raises is a finding."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from callagent.rtp import PCMU, RtpParameters, RtpSender
from callagent.rtp.packet import TelephoneEvent
from callagent.rtp.receiver import RtpReceiver
from callagent.rtp.rtcp import Report, ReportBlock, Reports, compound_packet, parse_reports
from callagent.sip import (
    UNPROVEN,
    Account,
    Credentials,
    DigestSettings,
    Encryption,
    Hop,
    InviteReceived,
    MalformedMessage,
    MediaPolicy,
    Negotiation,
    OfferReceived,
    Request,
    TransferRequested,
    UserAgent,
    UserAgentSettings,
    parse_message,
)
from callagent.sip.connections import Framer
from callagent.sip.digest import Authenticator, authorization_for
from callagent.sip.message.message import respond_to
from callagent.sip.session_description import SessionDescription

Target = Callable[[bytes], None]

SLOWEST = 0.05
"""Seconds of this process that one input may take."""
_PEER = ("192.0.2.1", 5060)
_OURS = ("192.0.2.2", 5060)
_MEDIA = ("192.0.2.1", 4000)
_FRAME = 320
_DIGEST = DigestSettings("here", {"ann": Account("carrier", "secret")})
_POLICY = MediaPolicy(("PCMU", "PCMA", "G722", "OPUS"), Encryption.ALLOWED, confidential=True)
INVITE = (
    b"INVITE sip:agent@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK1\r\n"
    b"From: <sip:a@192.0.2.1>;tag=1\r\nTo: <sip:agent@192.0.2.2>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n"
    b"Contact: <sip:a@192.0.2.1>\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
)


class TooSlow(Exception):
    """An input took longer than any may."""


def sip(data: bytes) -> None:
    """A datagram, and the same octets on a connection: read, answered, and written as they were read."""
    for message in (data, *Framer().feed(data)):
        try:
            read = parse_message(message)
        except MalformedMessage:
            continue
        assert parse_message(bytes(read)).start_line() == read.start_line()
    _converse(data, UserAgentSettings(admit=lambda host: "trunk", accepts_transfers=True))
    _converse(data, UserAgentSettings(admit=lambda host: UNPROVEN, digest=_DIGEST))


def _converse(data: bytes, settings: UserAgentSettings) -> None:
    """Whatever it begins, a user agent can end it."""
    agent = UserAgent(settings, lambda peer: _OURS)
    agent.receive_datagram(data, _PEER, 0.0)
    while (event := agent.next_event()) is not None:
        if isinstance(event, InviteReceived):
            event.call.answer(b"", 0.0)
        elif isinstance(event, OfferReceived):
            event.call.refuse_offer(0.0)
        elif isinstance(event, TransferRequested):
            event.call.report_transfer(603, 0.0)
    agent.receive_datagram(data, _PEER, 0.1)
    for call in agent.calls:
        call.hang_up(0.2)
    for seconds in range(1, 200):
        if (timer := agent.next_timer()) is None:
            break
        agent.handle_timer(max(timer, float(seconds)))
        agent.messages_to_send()
    assert not agent.calls


def sdp(data: bytes) -> None:
    """As an offer, and as the answer to ours."""
    try:
        offer = SessionDescription.parse(data)
        answer, _ = Negotiation(_OURS[0], 5000, 1, loopback=False, policy=_POLICY).answer(data)
    except ValueError:
        pass
    else:
        assert len(SessionDescription.parse(answer).media) == len(offer.media)
    asked = Negotiation(_OURS[0], 5000, 1, loopback=False, policy=_POLICY)
    asked.offer()
    try:
        asked.accept(data)
    except ValueError:
        return
    SessionDescription.parse(asked.offer())


def rtp(data: bytes) -> None:
    """A row of datagrams, each behind an octet that tells its length, in the middle of a stream."""
    parameters = RtpParameters(PCMU, 101, in_band_digits=bool(data[:1] and data[0] & 1))
    receiver, sender = RtpReceiver(parameters, 0.0), RtpSender(PCMU)
    receiver.connect(_MEDIA, parameters, 0.0)
    now = 0.0
    for datagram in _cut(data):
        now += 0.02
        received = receiver.receive(sender.frame_to_send(None), _MEDIA, now)
        received += receiver.receive(datagram, _MEDIA, now)
        received += receiver.tick(now)
        assert all(isinstance(each, str) or len(each) == _FRAME for each in received)
        try:
            TelephoneEvent.parse(datagram)
        except ValueError:
            pass
    assert receiver.buffer.lost >= 0


def rtcp(data: bytes) -> None:
    """Reports about our stream, and about others."""
    parameters = RtpParameters(PCMU)
    receiver, sender = RtpReceiver(parameters, 0.0), RtpSender(PCMU)
    receiver.connect(_MEDIA, parameters, 0.0)
    sender.ssrc = 1
    reports = Reports("name", 0.0)
    reports.make(sender, receiver, 0.0, 1000.0)
    reports.receive(data, sender, receiver, 0.5, 1000.5)
    assert reports.peer_lost >= 0
    assert 0.0 <= reports.round_trip < 60.0
    parse_reports(reports.make(sender, receiver, 5.0, 1005.0))
    try:
        for report in parse_reports(data):
            bytes(report)
    except ValueError:
        pass


def digest(data: bytes) -> None:
    """As a caller's proof, and as a server's challenge."""
    # A header that was read from the wire holds no line breaks.
    text = "".join(each for each in data.decode("utf-8", "replace") if each not in "\r\n\0")
    request = parse_message(INVITE)
    assert isinstance(request, Request)
    request.headers.set("Authorization", text)
    verdict = Authenticator(_DIGEST).check(request, Hop(*_PEER), 1000.0)
    assert verdict.trunk is None
    refusal = respond_to(request, 401, tag="2", headers=[("WWW-Authenticate", text)])
    proof = authorization_for(request, refusal, Credentials("ann", "secret", "here"))
    # Ours goes to its realm only.
    assert proof is None or "here" in text


TARGETS: dict[str, Target] = {each.__name__: each for each in (sip, sdp, rtp, rtcp, digest)}


def run(target: Target, data: bytes) -> None:
    """Raises what the target raises, and `TooSlow`; what only the machine delayed is fast another time."""
    for attempt in count(1):
        began = time.process_time()
        target(data)
        lasted = time.process_time() - began
        if lasted <= SLOWEST:
            return
        if attempt == 5:
            raise TooSlow(f"{lasted:.3f} s")


def seeds(name: str) -> list[bytes]:
    """Where the search begins; `sip` has the messages of the RFCs besides."""
    offer = Negotiation(_MEDIA[0], _MEDIA[1], 1, loopback=False, policy=_POLICY).offer()
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(PCMU, 101))
    audio = [sender.frame_to_send(None) for _ in range(3)]
    sender.press("5")
    packets = audio + [sender.frame_to_send(None) for _ in range(4)]
    block = ReportBlock(1, 5, 7, 100, 20, 3, 4)
    proof = (
        'Digest username="ann", realm="here", nonce="1.0", uri="sip:a", response="0", nc=00000001, cnonce="x", qop=auth'
    )
    challenge = 'Digest realm="here", nonce="abc", algorithm=SHA-256, qop="auth,auth-int", opaque="o", stale=false'
    found = {
        "sip": [INVITE, INVITE.replace(b"INVITE", b"OPTIONS"), *_messages(offer)],
        "sdp": [offer, *_descriptions(offer)],
        "rtp": [b"".join(bytes([len(each)]) + each for each in packets)],
        "rtcp": [compound_packet(Report(7, (block,), 1 << 40, 5, 6, 7), "peer", goodbye=True)],
        "digest": [proof.encode(), challenge.encode(), proof.replace("uri=", "algorithm=SHA-256, uri=").encode()],
    }
    return found[name]


def _messages(offer: bytes) -> list[bytes]:
    """One of each shape that a user agent takes apart further: bodies, routes, timers, transfers, responses."""
    plain = INVITE.partition(b"Content-Length")[0]
    part = b"Content-Type: application/sdp\r\n\r\n" + offer
    parts = b"--x\r\n" + part + b"\r\n--x\r\nContent-Type: application/isup\r\n\r\n\x01\x02\r\n--x--\r\n"
    fields = (
        b"Record-Route: <sip:192.0.2.7;lr>, <sip:192.0.2.8:5070;lr;transport=tcp>\r\n"
        b"Supported: timer, 100rel, replaces\r\n"
        b"Session-Expires: 1800;refresher=uac\r\nMin-SE: 90\r\nReplaces: 1;to-tag=2;from-tag=3\r\n"
        b'P-Asserted-Identity: "A" <sip:+15550100@192.0.2.1>, <tel:+15550100>\r\nPrivacy: id\r\n'
        b'Authorization: Digest username="ann", realm="here", nonce="n", uri="sip:a", response="0"\r\n'
    )
    within = plain.replace(b"INVITE", b"REFER").replace(b"<sip:agent@192.0.2.2>", b"<sip:agent@192.0.2.2>;tag=2")
    response = plain.partition(b"\r\n")[2]
    return [
        _with_body(plain, b"application/sdp", offer),
        _with_body(plain + fields, b"multipart/mixed;boundary=x", parts),
        _with_body(within + b"Refer-To: <sip:b@192.0.2.9?Replaces=1%3Bto-tag%3D2>\r\n", b"application/sdp", b""),
        _with_body(b"SIP/2.0 200 OK\r\n" + response, b"application/sdp", offer),
        INVITE.replace(b"Length: 0", b"Length: 9") + b"v=0\r\no=- 1",
    ]


def _with_body(head: bytes, kind: bytes, body: bytes) -> bytes:
    return head + b"Content-Type: " + kind + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _descriptions(offer: bytes) -> list[bytes]:
    """Offers with more in them than ours have."""
    session = b"v=0\r\no=- 1 2 IN IP6 2001:db8::1\r\ns=-\r\nc=IN IP6 2001:db8::1\r\nb=AS:64\r\nt=0 0\r\na=inactive\r\n"
    media = (
        b"m=audio 4000/2 RTP/SAVP 0 8 9 96 97 13\r\na=rtpmap:96 opus/48000/2\r\na=fmtp:96 useinbandfec=1;ptime=20\r\n"
    )
    more = (
        b"a=crypto:1 AEAD_AES_256_GCM inline:"
        + b"A" * 59
        + b"=|2^20|1:4\r\na=rtcp-mux\r\na=rtcp:4001 IN IP4 192.0.2.1\r\n"
    )
    video = b"m=video 0 RTP/AVP 99\r\nm=image 5000 udptl t38\r\na=ptime:40\r\na=maxptime:60\r\na=sendonly\r\n"
    return [session + media + more + video, offer + video, offer.replace(b"\r\n", b"\n")]


def _cut(data: bytes) -> list[bytes]:
    pieces, at = [], 1
    while at < len(data) and len(pieces) < 64:
        end = at + 1 + data[at]
        pieces.append(data[at + 1 : end])
        at = end
    return pieces
