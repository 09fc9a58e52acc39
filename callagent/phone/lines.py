"""The two lines of the test phone: calls by SIP, and calls over a carrier's stream as Twilio would place them."""

from __future__ import annotations

import asyncio
import audioop
import base64
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import random
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit
from xml.etree import ElementTree

from callagent.audio import FRAME_BYTES, FRAME_SAMPLES, FRAME_SECONDS
from callagent.call_info import EndReason, MediaStatistics
from callagent.errors import UserError
from callagent.legs import CallerHungUp, FrameSink, FrameSource, LegEvent, LegFailed, LegGone, Media
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.rtp import PortsExhausted, Pump, RtpPorts
from callagent.sip import Uri, UserAgentSettings, transport_of

if TYPE_CHECKING:
    from aiohttp import ClientSession, ClientWebSocketResponse


class Line(Protocol):
    """An answered call, as the calling party has it."""

    ended: asyncio.Future[str]
    """Done when the call is over; the result says how it ended."""
    on_transfer: Callable[[str], None]
    """Called with the target when the server asks us to call somebody else."""

    @property
    def media(self) -> Media: ...

    async def send_digits(self, digits: str) -> None: ...

    def lose(self, share: float) -> None:
        """Lose a share, 0 to 1, of the packets that we send. Raises `UserError` where no packets are sent."""

    async def hang_up(self) -> None:
        """End the call, in bounded time. Idempotent."""


ANSWER_SECONDS = 30.0
_REMEDIES = {  # what the user can do, by the SIP status of a refused call
    486: "; the server limits the calls of one number (limits.caller_calls…): call from another one with --caller"
}
_RTP_PORTS = (30000, 39999)
"""Lowest and highest port; those of a server on this machine are lower."""


class LossyPorts(RtpPorts):
    """RTP ports whose sockets lose a share, 0 to 1, of the packets sent."""

    share = 0.0

    def bind(self) -> socket.socket:
        bound = super().bind()
        # The lossy socket takes over the descriptor, which stays bound.
        lossy = _LossySocket(bound.family, bound.type, bound.proto, bound.detach())
        lossy.setblocking(False)
        lossy.ports = self
        return lossy


class _LossySocket(socket.socket):
    ports: LossyPorts

    def sendto(self, data: Any, *where: Any) -> int:
        return len(data) if random() < self.ports.share else super().sendto(data, *where)


class SipLine:
    """Implements `Line` over an outgoing SIP leg. A transfer that the server asks for is reported as answered."""

    def __init__(self, leg: SipLeg, media: Media, ports: LossyPorts) -> None:
        self.media = media
        self._ports = ports
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_transfer: Callable[[str], None] = lambda target: None
        self.transfer_headers: Mapping[str, str] = {}
        """The headers of the latest transfer that the server asked for."""
        self._leg = leg
        leg.on_transfer_request = self._report_transfer
        leg.listen(self._handle_event)

    async def send_digits(self, digits: str) -> None:
        await self._leg.send_digits(digits)

    def lose(self, share: float) -> None:
        self._ports.share = share

    async def hang_up(self) -> None:
        await self._leg.hang_up(EndReason.CALLER_HANGUP)

    def _report_transfer(self, target: str, headers: Mapping[str, str]) -> None:
        # The phone calls nobody else: it says at once that the target has answered, so that the server hangs up.
        self.transfer_headers = headers
        self.on_transfer(target)
        self._leg.report_transfer(200)

    def _handle_event(self, event: LegEvent) -> None:
        if isinstance(event, CallerHungUp | LegFailed) and not self.ended.done():
            self.ended.set_result("the server hung up" if isinstance(event, CallerHungUp) else event.detail)


@asynccontextmanager
async def dial_sip(target: str, caller: str) -> AsyncIterator[SipLine]:
    """Call a SIP URI, and yield the line when it has answered. Raises `UserError` if it does not."""
    host = _local_host(target)
    # Only this machine's kernel reliably tells that nobody listens; a refusal from afar may be lost like any packet.
    if host != "0.0.0.0" and transport_of(Uri.parse(target)) == "udp":
        _expect_listener(host, target)
    pump = Pump()
    pump.start()
    ports = LossyPorts(host, *_RTP_PORTS)
    legs = SipLegFactory(ports, pump)
    try:
        await legs.open(host, 0, UserAgentSettings(admit=lambda source: "phone", accepts_transfers=True))
        leg = await _dial(legs, target, f"sip:{caller}@{host}")
        try:
            yield SipLine(leg, await _wait_for_answer(leg, target), ports)
        finally:
            await leg.hang_up(EndReason.CALLER_HANGUP)
    finally:
        await legs.close()
        pump.stop()


async def _dial(legs: SipLegFactory, target: str, caller: str) -> SipLeg:
    try:
        return await legs.dial(target, caller=caller)
    except (ValueError, OSError, PortsExhausted) as error:
        raise UserError(f"'{target}' cannot be called: {error}") from None


async def _wait_for_answer(leg: SipLeg, target: str) -> Media:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await leg.answer()
    except LegGone as gone:
        raise UserError(f"{target} did not answer: {gone}{_REMEDIES.get(gone.status, '')}") from None
    except TimeoutError:
        raise UserError(f"{target} did not answer within {ANSWER_SECONDS:.0f} s; is the server running?") from None


def _local_host(target: str) -> str:
    """Return the address to bind: loopback for a server on this machine, else all interfaces. Raises `UserError`."""
    try:
        uri = Uri.parse(target)
    except ValueError:
        raise UserError(f"'{target}' is not a SIP URI; write sip:USER@HOST:PORT") from None
    host = uri.bare_host
    if host == "::1":
        return "::1"
    return "127.0.0.1" if host == "localhost" or host.startswith("127.") else "0.0.0.0"


def _expect_listener(host: str, target: str) -> None:
    """Raise `UserError` if nobody listens on this machine; its kernel reports that at once.

    Without this probe the INVITE would be repeated for 32 s (RFC 3261 §17.1.1.2).
    """
    uri = Uri.parse(target)
    peer = uri.bare_host if uri.bare_host != "localhost" else host
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, uri.port or 5060))
            # Keep-alives (RFC 5626 §3.5.1), which a server ignores. The refusal of the first is reported by the second.
            probe.send(b"\r\n\r\n")
            probe.send(b"\r\n\r\n")
        except ConnectionRefusedError:
            where = f"{peer} port {uri.port or 5060}"
            raise UserError(f"nobody listens on {where}; start the server there: callagent serve") from None
        except OSError as error:
            raise UserError(f"'{target}' cannot be called: {error.strerror or error}") from None


DIAL_SECONDS: Final = 10.0
"""Time for webhook and stream to answer."""
DIGIT_SECONDS: Final = 0.2
"""Wait after each key."""
CLOSE_SECONDS: Final = 2.0
"""Time for the stream to close."""
_SILENCE: Final = b"\xff" * FRAME_SAMPLES
"""A frame of silence in μ-law."""


class NotAnswered(UserError):
    """The server did not take the call."""


@dataclass(frozen=True, slots=True)
class _RequestedStream:
    """The stream that a webhook asks for in TwiML (Twilio's XML): its URL, and the parameters of its start message."""

    url: str
    parameters: Mapping[str, str]


class StreamMedia:
    """Implements `Media` for a carrier's stream: queued audio is played at one frame per 20 ms, as a carrier does."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self._sink: FrameSink = lambda pcm, now: None
        self._source: FrameSource = lambda: None
        self._queue = bytearray()
        self._queued = self._played = 0
        # Both count octets, which are samples of μ-law.
        self.cleared = 0
        """How often the server dropped the queue."""
        self._marks: deque[tuple[str, int]] = deque()
        """Marks that are not reached yet, each with the number of octets queued before it."""
        self._statistics = MediaStatistics(codec="PCMU/8000")

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        self._sink = sink
        self._source = source
        self.started.set()

    def clear(self) -> float:
        return 0.0

    def unheard(self) -> float:
        return 0.0

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    def queue(self, payload: bytes) -> None:
        """Queue μ-law audio of the server, to be played after what is queued already."""
        self._queue += payload
        self._queued += len(payload)
        self._statistics.packets_received += 1

    def mark(self, name: str) -> None:
        """Set a mark behind the queued audio."""
        self._marks.append((name, self._queued))

    def drop(self) -> None:
        """Drop the queue, because the server asks for it; the marks in it count as reached."""
        # A carrier reports the marks of dropped audio at once, before those of what is queued next.
        self.cleared += 1
        self._queue.clear()
        self._played = self._queued

    def take_reached_marks(self) -> list[str]:
        """Return the marks that were reached since the last call of this method."""
        names = []
        while self._marks and self._marks[0][1] <= self._played:
            names.append(self._marks.popleft()[0])
        return names

    def play(self, now: float) -> None:
        """Play the next 20 ms to the earpiece, or silence if the server has queued nothing."""
        frame = bytes(self._queue[:FRAME_SAMPLES])
        del self._queue[:FRAME_SAMPLES]
        self._played += len(frame)
        self._sink(audioop.ulaw2lin(frame.ljust(FRAME_SAMPLES, b"\xff"), 2), now)

    def speak(self) -> bytes:
        """Return the next 20 ms of the caller as μ-law."""
        self._statistics.packets_sent += 1
        frame = self._source()
        return _SILENCE if frame is None else audioop.lin2ulaw(frame.ljust(FRAME_BYTES, b"\x00"), 2)


class StreamPhone:
    """An answered call over a media stream; implements `Line`."""

    def __init__(self, socket: ClientWebSocketResponse, stream_sid: str) -> None:
        self.media = StreamMedia()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_transfer: Callable[[str], None] = lambda target: None
        self._socket = socket
        self._stream_sid = stream_sid
        self._sequence = 1
        self._chunk = 0

    @staticmethod
    @asynccontextmanager
    async def dial(
        target: str, auth_token: str, caller: str, callee: str, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamPhone]:
        """Call the voice webhook `target` (or the webhook beside a `ws://…/media` stream).

        `fields` are added to the webhook's form (`AccountSid`, `SipHeader_X-…`). Raises `NotAnswered`.
        """
        from aiohttp import ClientError, ClientSession

        # The fields that Twilio sends to a voice webhook, with identifiers of its form.
        identity = {"CallSid": f"CA{token_hex(16)}", "From": caller, "To": callee, "Direction": "inbound"}
        form = {**identity, "CallStatus": "ringing", **(fields or {})}
        async with ClientSession() as session:
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    stream = await _request_stream(session, _voice_url(target), form, auth_token)
                    signature = _signature(auth_token, stream.url, {})
                    headers = {"X-Twilio-Signature": signature}
                    socket = await session.ws_connect(stream.url, headers=headers, max_msg_size=1 << 20)
            except (ClientError, OSError) as error:
                raise NotAnswered(f"{target} could not be called: {error or 'no answer in time'}") from None
            phone = StreamPhone(socket, f"MZ{token_hex(16)}")
            async with phone._talk(form, stream.parameters):
                yield phone

    def lose(self, share: float) -> None:
        raise UserError("a media stream has no packets to lose; call the server by SIP for `packet_loss`")

    async def send_digits(self, digits: str) -> None:
        for digit in digits:
            await self.send_digit(digit)
            await asyncio.sleep(DIGIT_SECONDS)

    async def send_digit(self, digit: str) -> None:
        await self._send("dtmf", dtmf={"track": "inbound_track", "digit": digit})

    async def hang_up(self) -> None:
        """End the call, in bounded time. Idempotent."""
        self._end("we hung up")
        if self._socket.closed:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send("stop", stop={})
                await self._socket.close()
        except TimeoutError:
            pass

    @asynccontextmanager
    async def _talk(self, form: Mapping[str, str], parameters: Mapping[str, str]) -> AsyncIterator[None]:
        await self._socket.send_str(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        await self._send(
            "start",
            start={
                "accountSid": form.get("AccountSid", ""),
                "streamSid": self._stream_sid,
                "callSid": form["CallSid"],
                "tracks": ["inbound"],
                "customParameters": dict(parameters),
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            },
        )
        # Two tasks, because a frame is due every 20 ms whether or not a message comes in.
        tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._play_and_send())]
        try:
            yield
        finally:
            await self.hang_up()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        """Handle the server's messages until the socket ends."""
        async for message in self._socket:
            fields = json.loads(message.data)
            match fields["event"]:
                case "media":
                    self.media.queue(base64.b64decode(fields["media"]["payload"]))
                case "mark":
                    self.media.mark(fields["mark"]["name"])
                case "clear":
                    self.media.drop()
            await self._answer_marks()
        self._end(f"the server closed the stream ({self._socket.close_code})")

    async def _play_and_send(self) -> None:
        """Play and send a frame every 20 ms, at absolute times, so that lateness does not add up."""
        await self.media.started.wait()
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self.ended.done():
            self.media.play(loop.time())
            await self._answer_marks()
            self._chunk += 1
            payload = base64.b64encode(self.media.speak()).decode("ascii")
            media = {"track": "inbound", "chunk": str(self._chunk), "timestamp": str(self._chunk * 20)}
            await self._send("media", media={**media, "payload": payload})
            # Counting from the due time, not from the present one, keeps the delay of one frame out of the next.
            due += FRAME_SECONDS
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _answer_marks(self) -> None:
        for name in self.media.take_reached_marks():
            await self._send("mark", mark={"name": name})

    async def _send(self, event: str, **contents: object) -> None:
        message = {"event": event, "sequenceNumber": str(self._sequence), "streamSid": self._stream_sid, **contents}
        self._sequence += 1
        # A broken socket ends the call at once: the listening task may notice it later.
        try:
            await self._socket.send_str(json.dumps(message))
        except ConnectionError:
            self._end("the connection was lost")

    def _end(self, how: str) -> None:
        if not self.ended.done():
            self.ended.set_result(how)


async def _request_stream(
    session: ClientSession, url: str, form: Mapping[str, str], auth_token: str
) -> _RequestedStream:
    """Post the carrier's form to the webhook, and return the stream of its answer. Raises `NotAnswered`."""
    headers = {"X-Twilio-Signature": _signature(auth_token, url, form)}
    async with session.post(url, data=form, headers=headers) as response:
        text = await response.text()
    if response.status == 403:
        raise NotAnswered(
            f"{url} refused the signature; check that it is the server's public URL and twilio.auth_token the server's"
        )
    if response.status != 200:
        raise NotAnswered(f"{url} answered {response.status} {response.reason}")
    try:
        stream = ElementTree.fromstring(text).find("Connect/Stream")
    except ElementTree.ParseError as error:
        raise NotAnswered(f"{url} did not answer with TwiML: {error}") from None
    if stream is None:
        raise NotAnswered(f"{url} did not take the call: {text[:200]}")
    parameters = {p.get("name", ""): p.get("value", "") for p in stream.findall("Parameter")}
    return _RequestedStream(stream.get("url", ""), parameters)


def _voice_url(target: str) -> str:
    """Return the URL of the voice webhook, which stands beside that of the media stream."""
    parts = urlsplit(target)
    if parts.scheme in ("http", "https"):
        return target
    path = parts.path.removesuffix("/media") + "/voice"
    return parts._replace(scheme=parts.scheme.replace("ws", "http"), path=path).geturl()


def _signature(auth_token: str, url: str, form: Mapping[str, str]) -> str:
    # Imported here: the SIP line does without the package.
    from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

    return str(RequestValidator(auth_token).compute_signature(url, form))
