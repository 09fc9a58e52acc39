"""Streams to a provider's recogniser: over a socket while the caller speaks, or an utterance at a time over HTTP.

`SocketStream` holds one socket for each call; what goes over it is each provider's `Dialect`. Audio goes out between
`begin()` and `finish()` only, with the half second before it; in between the socket is kept alive. `UtteranceStream`
collects an utterance and asks once it is over: there are no partial transcripts.

A stream that has failed says so in `failed` and answers nothing more: `FailoverStream` opens another one.
"""

from __future__ import annotations

import asyncio
import audioop
import io
import wave
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.speech.protocol import PREROLL_BYTES, RecognizerSettings, SpeechProvider, Transcript
from callagent.speech.providers import connections
from callagent.speech.providers.connections import ProviderClient, encode_ulaw

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = get_logger(__name__)

MESSAGE_BYTES = 3 * FRAME_BYTES
"""60 ms: some providers refuse less than 50 ms in a message."""
MAX_WAITING = 1000
"""Messages that wait to be sent, a minute of speech. Beyond them the socket is too slow to be of use and fails."""
KEEP_ALIVE_SECONDS = 4.0
"""Time without a message of ours after which the dialect's `keep_alive` is sent."""
FINAL_GRACE_SECONDS = 1.0
"""Time to wait after `finish()` for a final transcript when partial ones have already arrived."""
Message = str | bytes


class TextKind(Enum):
    """How much the provider has settled on a text."""

    PARTIAL = "partial"
    """The words since the last committed part; they replace the ones before and may change again."""
    COMMITTED = "committed"
    """A part that stays as it is."""
    COMPLETE = "complete"
    """The answer to `finish()`; its text is a last committed part."""


@dataclass(frozen=True, slots=True)
class RecognizedText:
    """What one message of a provider says about the oldest utterance that is owed."""

    kind: TextKind
    text: str = ""
    confidence: float | None = None


Address = tuple[str, Mapping[str, str]]
"""URL and headers of a socket."""


class Dialect(Protocol):
    """The messages of one provider's socket, in both directions. Without I/O; one for each stream."""

    who: str
    """The provider's name in errors and logs."""
    joiner: str
    """What stands between committed parts: a space, where the provider's parts have none at their ends."""
    keep_alive: str | None
    """The message for a silent socket; None: the provider needs none."""

    def address(self, settings: RecognizerSettings) -> Address:
        """Return where a socket for utterances with these settings leads."""

    def hello(self, settings: RecognizerSettings) -> Sequence[Message]:
        """Return the first messages on a new socket."""

    def audio(self, ulaw: bytes) -> Message:
        """Return the message that carries a piece of the caller's audio."""

    def finish(self) -> Sequence[Message]:
        """Return what asks for the final transcript of the audio so far."""

    def farewell(self) -> Sequence[Message]:
        """Return the last messages before the socket is closed."""

    def receive(self, message: Message) -> RecognizedText | tuple[RecognizedText, ...] | None:
        """Return what a message recognised, None for a message about something else.

        Raises `ProviderError` for what the provider reports, and for what is none of its messages.
        """


@dataclass(slots=True)
class _Utterance:
    """An utterance whose final transcript is owed."""

    number: int
    finished: bool = False
    answered: bool = False
    """Whether the provider has recognised anything while this was the oldest utterance."""
    committed: list[str] = field(default_factory=list)
    partial: str = ""
    confidence: float | None = None

    def text(self, joiner: str) -> str:
        return joiner.join([*self.committed, *filter(None, [self.partial])]).strip()


class SocketRecognizer:
    """A provider's recogniser over sockets; `connect_timeout` in seconds."""

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
    """One call's stream over a socket. It owns one task while a socket is open.

    Providers answer in the order of the audio and do not number utterances, so an answer is of the oldest one that is
    owed.
    """

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
        self._opened: tuple[Address, tuple[Message, ...]] | None = None
        """Where the present socket leads, and the first messages on it."""
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue(MAX_WAITING)
        self._before = bytearray()
        self._unsent = bytearray()
        """Audio of the utterance that does not fill a message yet."""
        self._count = 0
        self._hearing: _Utterance | None = None
        self._owed: deque[_Utterance] = deque()
        self._grace: asyncio.TimerHandle | None = None
        self.failed: ProviderError | None = None
        """Why no more transcripts come."""

    # RecognizerStream

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
        self._say_farewell()
        if self.failed:
            self._task.cancel()

    # The socket

    def _say_farewell(self) -> None:
        # None ends the task once everything before it was sent.
        for message in (*self._dialect.farewell(), None):
            self._send(message)

    def _connect(self, settings: RecognizerSettings) -> None:
        """Open a socket where there is none, or one for other settings where nothing is owed on it."""
        address, hello = self._dialect.address(settings), tuple(self._dialect.hello(settings))
        running = self._task is not None and not self._task.done()
        # Another language or other keywords need another socket. While an earlier utterance waits for its transcript on
        # the old one, that is kept: an utterance recognised with old settings is better than one that is lost.
        if self.failed or (running and ((address, hello) == self._opened or len(self._owed) > 1)):
            return
        if running:
            self._say_farewell()
        self._opened = (address, hello)
        # A queue for each socket: what waits for the old one, its farewell among it, still goes there. The audio of the
        # new utterance waits in the new queue while the socket is being opened.
        self._outgoing = asyncio.Queue(MAX_WAITING)
        for message in hello:
            self._send(message)
        self._task = asyncio.get_running_loop().create_task(self._run(address, self._outgoing))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _run(self, address: Address, outgoing: asyncio.Queue[Message | None]) -> None:
        """Serve one socket from its opening to its end. A socket that was replaced no longer counts."""
        try:
            async with self._socket(address) as socket, self._receiver(socket, outgoing) as receiving:
                await self._send_all(socket, outgoing, receiving)
        except ProviderError as error:
            if outgoing is self._outgoing:
                self._fail(error)

    @asynccontextmanager
    async def _socket(self, address: Address) -> AsyncIterator[ClientConnection]:
        socket = await connections.open_socket(self._dialect.who, *address, self._connect_timeout)
        try:
            yield socket
        finally:
            await socket.close()

    @asynccontextmanager
    async def _receiver(
        self, socket: ClientConnection, outgoing: asyncio.Queue[Message | None]
    ) -> AsyncIterator[asyncio.Future[None]]:
        """Receive beside the sending; ends with it."""
        receiving = asyncio.ensure_future(self._receive_all(socket, outgoing))
        try:
            yield receiving
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
            # Looked at, so that asyncio does not log it as lost: the sender has raised it already, or it follows from
            # the end.
            receiving.cancelled() or receiving.exception()

    async def _send_all(
        self, socket: ClientConnection, outgoing: asyncio.Queue[Message | None], receiving: asyncio.Future[None]
    ) -> None:
        """Send what is queued, until the farewell is sent or receiving has ended. Raises `ProviderError`."""
        # One pending get() over all rounds: a new one for each round would take messages that nobody sends.
        taking = asyncio.ensure_future(outgoing.get())
        try:
            while True:
                await asyncio.wait((taking, receiving), timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    return receiving.result()
                message = taking.result() if taking.done() else self._dialect.keep_alive
                if taking.done() and message is None:
                    return None
                if taking.done():
                    taking = asyncio.ensure_future(outgoing.get())
                if message is not None:
                    await connections.send_message(self._dialect.who, socket, message)
        finally:
            taking.cancel()

    async def _receive_all(self, socket: ClientConnection, outgoing: asyncio.Queue[Message | None]) -> None:
        while True:
            message = await connections.receive_message(self._dialect.who, socket)
            found = self._dialect.receive(message)
            if found is not None and outgoing is self._outgoing:
                for one in found if isinstance(found, tuple) else (found,):
                    self._receive_text(one)

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
        # A socket that is closed between two utterances is opened again for the next one: providers end idle ones.
        idle = not self._owed and isinstance(error, connections.SocketClosed)
        if self.failed or idle:
            return
        self.failed = error
        # The task ends itself with what it raised; only a failure from outside of it has to end it.
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        log.debug("recognizer_failed", provider=self._dialect.who, error=str(error))

    # What was recognised

    def _receive_text(self, found: RecognizedText) -> None:
        if not self._owed:
            return
        utterance, joiner = self._owed[0], self._dialect.joiner
        utterance.answered = True
        # The last part with words decides: some providers end with an empty part of confidence 0.
        if found.confidence is not None and found.text:
            utterance.confidence = found.confidence
        if found.kind is TextKind.PARTIAL:
            changed = found.text != utterance.partial
            utterance.partial = found.text
        else:
            # Committing exactly the words of the last partial transcript is no news for the call.
            changed = bool(found.text) and found.text != utterance.partial
            utterance.partial = ""
            utterance.committed += [found.text] if found.text else []
        if found.kind is TextKind.COMPLETE and utterance.finished:
            self._complete()
            return
        if changed and (text := utterance.text(joiner)):
            self._on_transcript(Transcript(text, False, utterance.number))
        # The socket opened late, and the grace ended before anything had arrived: it starts again with what arrives.
        if utterance.finished and self._grace is None:
            self._arm_grace()

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
        """Answer with what has arrived: some providers send nothing where nothing was left to be transcribed."""
        self._grace = None
        # Where nothing has arrived either, the provider is late or gone: the line-up's deadline decides.
        if self._owed and self._owed[0].answered and not self.failed:
            self._complete()


MAX_AUDIO = 58 * 2 * SAMPLE_RATE
"""Bytes of one utterance; what is said after that is not heard. Google and Azure take a minute."""
WIDE_RATE = 16000
"""Samples per second for servers that know nothing narrower."""


@dataclass(frozen=True, slots=True)
class UtteranceText:
    """What a provider understood of a whole utterance; the text is empty where nothing was said."""

    text: str
    confidence: float | None = None
    alternatives: tuple[str, ...] = ()


Transcribe = Callable[[bytes, RecognizerSettings], Awaitable[UtteranceText]]
"""Returns the text of an utterance in 16-bit PCM at 8 kHz. Raises `ProviderError`."""


class UtteranceStream:
    """One call's stream to a recogniser that takes whole utterances."""

    def __init__(self, transcribe: Transcribe, on_transcript: Callable[[Transcript], None]) -> None:
        self._transcribe = transcribe
        self._on_transcript = on_transcript
        self._before = bytearray()
        self._hearing: tuple[bytearray, RecognizerSettings] | None = None
        self._count = 0
        self._requests: set[asyncio.Task[None]] = set()
        self.failed: ProviderError | None = None
        """Why no more transcripts come."""

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
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def close(self) -> None:
        for task in self._requests:
            task.cancel()

    async def _ask(self, number: int, pcm: bytes, settings: RecognizerSettings) -> None:
        try:
            found = await self._transcribe(pcm, settings)
        except ProviderError as error:
            self.failed = error
            return
        if self.failed is None:
            text = found.text.strip()
            confidence = found.confidence if text else None
            self._on_transcript(Transcript(text, True, number, found.alternatives, confidence))


class UtteranceRecognizer:
    """A recogniser that asks over HTTP, an utterance at a time; each provider implements `transcribe`."""

    who: ClassVar[str]

    def __init__(self, settings: SpeechProvider) -> None:
        self._settings = settings
        self._client = ProviderClient(self.who, settings)

    async def open(self, on_transcript: Callable[[Transcript], None]) -> UtteranceStream:
        return UtteranceStream(self.transcribe, on_transcript)

    async def close(self) -> None:
        await self._client.close()

    async def transcribe(self, pcm: bytes, settings: RecognizerSettings) -> UtteranceText:
        """Return the text of an utterance in 16-bit PCM at 8 kHz. Raises `ProviderError`."""
        raise NotImplementedError


def wide(pcm: bytes) -> bytes:
    """Return PCM at 8 kHz as PCM at `WIDE_RATE`."""
    return audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, WIDE_RATE, None)[0]


def wav(pcm: bytes, rate: int = SAMPLE_RATE) -> bytes:
    """Return 16-bit PCM as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(pcm)
    return file.getvalue()
