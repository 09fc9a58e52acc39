"""Recognisers behind a socket: one socket per call, what is said on it is each provider's dialect.

Audio goes out between `begin()` and `finish()` only, with the half second before it; in between the socket is kept
alive. A stream that failed says so in `failed` and answers nothing more: `FailoverRecognizer` opens another.
"""

from __future__ import annotations

import asyncio
import audioop
import io
import wave
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.speech.protocol import RecognizerSettings, SpeechProvider, Transcript
from callagent.speech.providers import connections
from callagent.speech.providers.connections import ProviderClient, encode_ulaw

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = get_logger(__name__)

PREROLL_BYTES = 25 * FRAME_BYTES
MESSAGE_BYTES = 3 * FRAME_BYTES
"""60 ms: some providers refuse less than 50 ms in a message."""
MAX_WAITING = 1000
"""Messages that wait to be sent, a minute of speech. Beyond them the socket is too slow to be of use and fails."""
KEEP_ALIVE_SECONDS = 4.0
FINAL_GRACE_SECONDS = 1.0
"""Time to wait after `finish()` for a final transcript when partial ones have already arrived."""
Message = str | bytes


class HeardKind(Enum):
    PARTIAL = "partial"
    """What was said since the last committed part, as far as it is understood."""
    COMMITTED = "committed"
    """A part that stays as it is."""
    COMPLETE = "complete"
    """The answer to `finish()`; its text is a last committed part."""


@dataclass(frozen=True, slots=True)
class Heard:
    kind: HeardKind
    text: str = ""
    confidence: float | None = None


class Dialect(Protocol):
    """What one provider's socket understands and says. No I/O; one for each stream."""

    who: str
    joiner: str
    """Between committed parts."""
    keep_alive: str | None

    def address(self, settings: RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        """URL and headers of a socket for utterances such as this."""

    def hello(self, settings: RecognizerSettings) -> Sequence[Message]:
        """What is said first on a new socket."""

    def audio(self, ulaw: bytes) -> Message: ...

    def finish(self) -> Sequence[Message]:
        """Asks for the final transcript of what was sent."""

    def farewell(self) -> Sequence[Message]: ...

    def receive(self, message: Message) -> Heard | tuple[Heard, ...] | None:
        """Raises `ProviderError` for what the provider reports, and for what is none of its messages."""


@dataclass(slots=True)
class _Utterance:
    number: int
    finished: bool = False
    answered: bool = False
    """The provider said something while it was the oldest."""
    committed: list[str] = field(default_factory=list)
    partial: str = ""
    confidence: float | None = None

    def text(self, joiner: str) -> str:
        return joiner.join([*self.committed, *filter(None, [self.partial])]).strip()


class SocketRecognizer:
    """A provider's recogniser; `connect_timeout` in seconds."""

    def __init__(self, make_dialect: Callable[[], Dialect], connect_timeout: float) -> None:
        self._make_dialect = make_dialect
        self._connect_timeout = connect_timeout
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, on_transcript: Callable[[Transcript], None]) -> SocketStream:
        return SocketStream(self._make_dialect(), on_transcript, self._connect_timeout, self._tasks)

    async def close(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=2 * connections.CLOSE_SECONDS)
            for task in late:
                task.cancel()


class SocketStream:
    """One call's ear. It owns one task while a socket is open."""

    def __init__(
        self,
        dialect: Dialect,
        on_transcript: Callable[[Transcript], None],
        connect_timeout: float,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._dialect = dialect
        self._on_transcript = on_transcript
        self._connect_timeout = connect_timeout
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._opened: tuple[tuple[str, Mapping[str, str]], tuple[Message, ...]] | None = None
        """Where the socket leads and what it was told first."""
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue(MAX_WAITING)
        self._before = bytearray()
        self._unsent = bytearray()
        self._count = 0
        self._hearing: _Utterance | None = None
        self._owed: deque[_Utterance] = deque()
        self._grace: asyncio.TimerHandle | None = None
        self.failed: ProviderError | None = None
        """Why no more transcripts come."""

    # the call's side

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            self._unsent += pcm
            while len(self._unsent) >= MESSAGE_BYTES:
                self._send_audio(MESSAGE_BYTES)
            return
        self._before += pcm
        if len(self._before) > 2 * PREROLL_BYTES:
            del self._before[:-PREROLL_BYTES]

    def begin(self, settings: RecognizerSettings) -> None:
        self._count += 1
        self._hearing = _Utterance(self._count)
        self._owed.append(self._hearing)
        self._connect(settings)
        before = bytes(self._before[-PREROLL_BYTES:])
        self._before.clear()
        self.feed(before)

    def finish(self) -> None:
        if self._hearing is None:
            return
        if self._unsent:
            self._send_audio(len(self._unsent))
        self._hearing.finished = True
        self._hearing = None
        for message in self._dialect.finish():
            self._send(message)
        self._arm_grace()

    def close(self) -> None:
        self._owed.clear()
        self._hearing = None
        self._arm_grace()
        if self._task is None or self._task.done():
            return
        self._part()
        if self.failed:
            self._task.cancel()

    # the socket

    def _part(self) -> None:
        for message in (*self._dialect.farewell(), None):
            self._send(message)

    def _connect(self, settings: RecognizerSettings) -> None:
        """Open a socket where there is none, or one for other settings where nothing is owed on it."""
        address, hello = self._dialect.address(settings), tuple(self._dialect.hello(settings))
        running = self._task is not None and not self._task.done()
        if self.failed or (running and ((address, hello) == self._opened or len(self._owed) > 1)):
            return
        if running:
            self._part()
        self._opened = (address, hello)
        self._outgoing = asyncio.Queue(MAX_WAITING)
        for message in hello:
            self._send(message)
        self._task = asyncio.get_running_loop().create_task(self._run(address, self._outgoing))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _run(self, address: tuple[str, Mapping[str, str]], outgoing: asyncio.Queue[Message | None]) -> None:
        who = self._dialect.who
        try:
            socket = await connections.open_socket(who, *address, self._connect_timeout)
            try:
                receiving = asyncio.ensure_future(self._receive_all(socket, outgoing))
                try:
                    await self._send_all(socket, outgoing, receiving)
                finally:
                    receiving.cancel()
                    await asyncio.wait({receiving})
                    # What it raised is known to the sender, or follows from its end.
                    receiving.cancelled() or receiving.exception()
            finally:
                await socket.close()
        except ProviderError as error:
            if outgoing is self._outgoing:
                self._fail(error)

    async def _send_all(
        self, socket: ClientConnection, outgoing: asyncio.Queue[Message | None], receiving: asyncio.Future[None]
    ) -> None:
        """Until `None` is to be sent, or receiving ends."""
        taking = asyncio.ensure_future(outgoing.get())
        try:
            while True:
                waiting: set[asyncio.Future[Any]] = {taking, receiving}
                await asyncio.wait(waiting, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    return receiving.result()
                message: Message | None = self._dialect.keep_alive
                if taking.done():
                    if (message := taking.result()) is None:
                        return None
                    taking = asyncio.ensure_future(outgoing.get())
                if message is not None:
                    await connections.send_message(self._dialect.who, socket, message)
        finally:
            taking.cancel()

    async def _receive_all(self, socket: ClientConnection, outgoing: asyncio.Queue[Message | None]) -> None:
        while True:
            message = await connections.receive_message(self._dialect.who, socket)
            heard = self._dialect.receive(message)
            if heard is not None and outgoing is self._outgoing:
                for one in heard if isinstance(heard, tuple) else (heard,):
                    self._take(one)

    def _send_audio(self, size: int) -> None:
        pcm = bytes(self._unsent[:size])
        del self._unsent[:size]
        self._send(self._dialect.audio(encode_ulaw(pcm)))

    def _send(self, message: Message | None) -> None:
        if self.failed:
            return
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self._fail(ProviderError(f"{self._dialect.who} takes the audio more slowly than it is spoken"))

    def _fail(self, error: ProviderError) -> None:
        idle = not self._owed and isinstance(error, connections.SocketClosed)
        if self.failed or idle:
            # A socket closed between two utterances is opened again for the next one.
            return
        self.failed = error
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        log.debug("recognizer_failed", provider=self._dialect.who, error=str(error))

    # what was heard

    def _take(self, heard: Heard) -> None:
        if not self._owed:
            return
        utterance, joiner = self._owed[0], self._dialect.joiner
        utterance.answered = True
        if heard.confidence is not None and heard.text:
            utterance.confidence = heard.confidence
        if heard.kind is HeardKind.PARTIAL:
            changed = heard.text != utterance.partial
            utterance.partial = heard.text
        else:
            changed = bool(heard.text) and heard.text != utterance.partial
            utterance.partial = ""
            utterance.committed += [heard.text] if heard.text else []
        if heard.kind is HeardKind.COMPLETE and utterance.finished:
            self._complete()
        elif changed and (text := utterance.text(joiner)):
            self._on_transcript(Transcript(text, False, utterance.number))

    def _complete(self) -> None:
        utterance = self._owed.popleft()
        self._arm_grace()
        text = utterance.text(self._dialect.joiner)
        confidence = utterance.confidence if text else None
        self._on_transcript(Transcript(text, True, utterance.number, (), confidence))

    def _arm_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if self._owed and self._owed[0].finished:
            self._grace = asyncio.get_running_loop().call_later(FINAL_GRACE_SECONDS, self._end_grace)

    def _end_grace(self) -> None:
        """Some providers do not answer where nothing was left to be transcribed."""
        self._grace = None
        if self._owed and self._owed[0].answered and not self.failed:
            self._complete()


PREROLL_BYTES = 25 * FRAME_BYTES
MAX_AUDIO = 58 * 2 * SAMPLE_RATE
"""Bytes of one utterance; what is said after that is not heard. Google and Azure take a minute."""
WIDE_RATE = 16000


@dataclass(frozen=True, slots=True)
class Understood:
    text: str
    confidence: float | None = None
    alternatives: tuple[str, ...] = ()


Transcribe = Callable[[bytes, RecognizerSettings], Awaitable[Understood]]
"""16-bit PCM at 8 kHz in. Raises `ProviderError`."""


class UtteranceStream:
    """One call's ear. A stream that failed says so in `failed` and answers nothing more."""

    def __init__(self, transcribe: Transcribe, on_transcript: Callable[[Transcript], None]) -> None:
        self._transcribe = transcribe
        self._on_transcript = on_transcript
        self._before = bytearray()
        self._hearing: tuple[bytearray, RecognizerSettings] | None = None
        self._count = 0
        self._asked: set[asyncio.Task[None]] = set()
        self.failed: ProviderError | None = None

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            audio, _ = self._hearing
            audio += pcm[: MAX_AUDIO - len(audio)]
            return
        self._before += pcm
        if len(self._before) > 2 * PREROLL_BYTES:
            del self._before[:-PREROLL_BYTES]

    def begin(self, settings: RecognizerSettings) -> None:
        self._count += 1
        self._hearing = (self._before[-PREROLL_BYTES:], settings)
        self._before.clear()

    def finish(self) -> None:
        if self._hearing is None:
            return
        (audio, settings), self._hearing = self._hearing, None
        task = asyncio.get_running_loop().create_task(self._ask(self._count, bytes(audio), settings))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def close(self) -> None:
        for task in self._asked:
            task.cancel()

    async def _ask(self, number: int, pcm: bytes, settings: RecognizerSettings) -> None:
        try:
            understood = await self._transcribe(pcm, settings)
        except ProviderError as error:
            self.failed = error
            return
        if self.failed is None:
            text = understood.text.strip()
            confidence = understood.confidence if text else None
            self._on_transcript(Transcript(text, True, number, understood.alternatives, confidence))


class UtteranceRecognizer:
    """A recogniser that asks over HTTP, an utterance at a time; each provider says how in `transcribe`."""

    who: ClassVar[str]

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(self.who, settings)

    async def open(self, on_transcript: Callable[[Transcript], None]) -> UtteranceStream:
        return UtteranceStream(self.transcribe, on_transcript)

    async def close(self) -> None:
        await self._client.close()

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> Understood:
        """16-bit PCM at 8 kHz in. Raises `ProviderError`."""
        raise NotImplementedError


def wide(pcm: bytes) -> bytes:
    """8 kHz as 16 kHz, for servers that know nothing narrower."""
    return audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, WIDE_RATE, None)[0]


def wav(pcm: bytes, rate: int = SAMPLE_RATE) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(pcm)
    return file.getvalue()
