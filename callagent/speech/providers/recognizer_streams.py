"""Streams to a provider's recogniser: over a socket while the caller speaks, or an utterance at a time over HTTP.

`SocketStream` holds one call's socket; each provider's `Dialect` makes and reads the messages on it. Audio is sent only
from half a second before `begin()` until `finish()`; between utterances the socket is kept alive. `UtteranceStream`
collects an utterance and sends it when it is over, so it has no partial transcripts.

A stream that fails sets `failed` and sends no more transcripts: `FailoverStream` opens another one.
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
MAX_QUEUED_MESSAGES = 1000
"""Messages that wait to be sent: a minute of speech. With more, the socket is too slow to be of use, and fails."""
KEEP_ALIVE_SECONDS = 4.0
"""Time without a message of ours after which the dialect's `keep_alive` is sent."""
FINAL_GRACE_SECONDS = 1.0
"""Time to wait after `finish()` for a final transcript when partial ones have already arrived."""
Message = str | bytes


class TextKind(Enum):
    """Whether a recognised text may still change."""

    PARTIAL = "partial"
    """The words after the last committed part; the next partial text replaces them."""
    COMMITTED = "committed"
    """A part of the utterance that does not change any more."""
    COMPLETE = "complete"
    """The answer to `finish()`; its text is the last committed part."""


@dataclass(frozen=True, slots=True)
class RecognizedText:
    """What one message of a provider says about the oldest utterance that is owed."""

    kind: TextKind
    text: str = ""
    confidence: float | None = None


Address = tuple[str, Mapping[str, str]]
"""URL and headers of a socket."""


class Dialect(Protocol):
    """The messages of one provider's socket, in both directions. Each stream has its own dialect, which does no I/O."""

    who: str
    """The provider's name in errors and logs."""
    joiner: str
    """The separator of committed parts: a space, or empty if the provider's parts bring their own."""
    keep_alive: str | None
    """The message for a silent socket; None: the provider needs none."""

    def address(self, settings: RecognizerSettings) -> Address:
        """Return URL and headers of a socket for utterances with these settings."""

    def opening_messages(self, settings: RecognizerSettings) -> Sequence[Message]:
        """Return the first messages on a new socket."""

    def audio_message(self, ulaw: bytes) -> Message:
        """Return the message that carries a piece of the caller's audio."""

    def finish_messages(self) -> Sequence[Message]:
        """Return the messages that ask for the final transcript of the audio so far."""

    def closing_messages(self) -> Sequence[Message]:
        """Return the last messages before the socket is closed."""

    def receive(self, message: Message) -> RecognizedText | tuple[RecognizedText, ...] | None:
        """Return the recognised texts of a message, None if it has none.

        Raises `ProviderError` for an error that the provider reports, and for an invalid message.
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

    Providers answer in the order of the audio and do not number utterances, so an answer belongs to the oldest
    utterance whose final transcript is owed.
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
        self._opened_with: tuple[Address, tuple[Message, ...]] | None = None
        """Address of the present socket, and the first messages on it."""
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._preroll = bytearray()
        self._unsent = bytearray()
        """Audio of the utterance that does not yet fill a message."""
        self._utterance_count = 0
        self._current: _Utterance | None = None
        self._owed: deque[_Utterance] = deque()
        self._grace: asyncio.TimerHandle | None = None
        self.failed: ProviderError | None = None
        """Why no more transcripts come."""

    # RecognizerStream

    def feed(self, pcm: bytes) -> None:
        if self._current is not None:
            self._unsent += pcm
            while len(self._unsent) >= MESSAGE_BYTES:
                self._send_audio(MESSAGE_BYTES)
            return
        self._preroll += pcm
        if len(self._preroll) > 2 * PREROLL_BYTES:
            del self._preroll[:-PREROLL_BYTES]

    def begin(self, settings: RecognizerSettings) -> None:
        self._utterance_count += 1
        self._current = _Utterance(self._utterance_count)
        self._owed.append(self._current)
        self._connect(settings)
        preroll = bytes(self._preroll[-PREROLL_BYTES:])
        self._preroll.clear()
        self.feed(preroll)

    def finish(self) -> None:
        if self._current is None:
            return
        if self._unsent:
            self._send_audio(len(self._unsent))
        self._current.finished = True
        self._current = None
        for message in self._dialect.finish_messages():
            self._send(message)
        self._arm_grace()

    def close(self) -> None:
        self._owed.clear()
        self._current = None
        self._arm_grace()
        if self._task is None or self._task.done():
            return
        self._end_socket()
        if self.failed:
            self._task.cancel()

    # The socket

    def _end_socket(self) -> None:
        # None ends the task once every message before it has been sent.
        for message in (*self._dialect.closing_messages(), None):
            self._send(message)

    def _connect(self, settings: RecognizerSettings) -> None:
        """Open a socket if there is none, or if the settings have changed and no earlier transcript is owed."""
        opening = (self._dialect.address(settings), tuple(self._dialect.opening_messages(settings)))
        is_running = self._task is not None and not self._task.done()
        # Another language or other keywords need another socket. While an earlier utterance waits for its transcript,
        # the old socket is kept: an utterance recognised with old settings is better than a lost one.
        if self.failed or (is_running and (opening == self._opened_with or len(self._owed) > 1)):
            return
        if is_running:
            self._end_socket()
        self._opened_with = opening
        address, first_messages = opening
        # Each socket has its own queue: messages that wait for the old socket are still sent there. The audio of the
        # new utterance waits in the new queue while the socket is being opened.
        self._outgoing = asyncio.Queue(MAX_QUEUED_MESSAGES)
        for message in first_messages:
            self._send(message)
        self._task = asyncio.get_running_loop().create_task(self._run(address, self._outgoing))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _run(self, address: Address, outgoing: asyncio.Queue[Message | None]) -> None:
        """Serve one socket from its opening to its end. The failure of a socket that was replaced is ignored."""
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
        """Receive messages in a task of its own, which ends with the `async with` block."""
        receiving = asyncio.ensure_future(self._receive_all(socket, outgoing))
        try:
            yield receiving
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
            # asyncio would log an exception that is never retrieved, though `_send_all` has raised it already, or it is
            # only a consequence of the end.
            receiving.cancelled() or receiving.exception()

    async def _send_all(
        self, socket: ClientConnection, outgoing: asyncio.Queue[Message | None], receiving: asyncio.Future[None]
    ) -> None:
        """Send queued messages until the closing ones are sent or receiving has ended. Raises `ProviderError`."""
        # One pending get() serves all rounds: a new one for each round would take messages that nobody sends.
        next_message = asyncio.ensure_future(outgoing.get())
        try:
            while True:
                await asyncio.wait(
                    (next_message, receiving), timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if receiving.done():
                    return receiving.result()
                message = next_message.result() if next_message.done() else self._dialect.keep_alive
                if next_message.done() and message is None:
                    return None
                if next_message.done():
                    next_message = asyncio.ensure_future(outgoing.get())
                if message is not None:
                    await connections.send_message(self._dialect.who, socket, message)
        finally:
            next_message.cancel()

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
        self._send(self._dialect.audio_message(encode_ulaw(pcm)))

    def _send(self, message: Message | None) -> None:
        if self.failed:
            return
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self._fail(ProviderError(f"{self._dialect.who} takes the audio more slowly than it is spoken"))

    def _fail(self, error: ProviderError) -> None:
        # Providers close idle sockets. One that is closed between two utterances is opened again for the next one.
        is_idle = not self._owed and isinstance(error, connections.SocketClosed)
        if self.failed or is_idle:
            return
        self.failed = error
        # The task ends by the exception that it raised; after a failure outside of it, it has to be cancelled.
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        log.debug("recognizer_failed", provider=self._dialect.who, error=str(error))

    # Recognised texts

    def _receive_text(self, found: RecognizedText) -> None:
        if not self._owed:
            return
        utterance, joiner = self._owed[0], self._dialect.joiner
        utterance.answered = True
        # The confidence is that of the last part with words: some providers end with an empty part of confidence 0.
        if found.confidence is not None and found.text:
            utterance.confidence = found.confidence
        if found.kind is TextKind.PARTIAL:
            changed = found.text != utterance.partial
            utterance.partial = found.text
        else:
            # A committed part equal to the partial text before it changes nothing for the call.
            changed = bool(found.text) and found.text != utterance.partial
            utterance.partial = ""
            utterance.committed += [found.text] if found.text else []
        if found.kind is TextKind.COMPLETE and utterance.finished:
            self._complete()
            return
        if changed and (text := utterance.text(joiner)):
            self._on_transcript(Transcript(text, False, utterance.number))
        # If the socket opened late, the grace ended before anything had arrived: it starts again with this text.
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
        """Complete the utterance with the texts so far: some providers send no answer to an end without new words."""
        self._grace = None
        # If there are no texts, the provider is late or gone: the deadline of the line-up decides.
        if self._owed and self._owed[0].answered and not self.failed:
            self._complete()


MAX_AUDIO_BYTES = 58 * 2 * SAMPLE_RATE
"""Audio of one utterance; what is said later is dropped, because Google and Azure accept only a minute."""
WIDEBAND_RATE = 16000
"""Samples per second of wideband audio, for servers that do not accept 8 kHz."""


@dataclass(frozen=True, slots=True)
class UtteranceText:
    """What a provider understood of a whole utterance; the text is empty if nothing was said."""

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
        self._preroll = bytearray()
        self._current: tuple[bytearray, RecognizerSettings] | None = None
        self._utterance_count = 0
        self._requests: set[asyncio.Task[None]] = set()
        self.failed: ProviderError | None = None
        """Why no more transcripts come."""

    def feed(self, pcm: bytes) -> None:
        if self._current is not None:
            audio, _ = self._current
            audio += pcm[: MAX_AUDIO_BYTES - len(audio)]
            return
        self._preroll += pcm
        if len(self._preroll) > 2 * PREROLL_BYTES:
            del self._preroll[:-PREROLL_BYTES]

    def begin(self, settings: RecognizerSettings) -> None:
        self._utterance_count += 1
        self._current = (self._preroll[-PREROLL_BYTES:], settings)
        self._preroll.clear()

    def finish(self) -> None:
        if self._current is None:
            return
        (audio, settings), self._current = self._current, None
        task = asyncio.get_running_loop().create_task(self._request_text(self._utterance_count, bytes(audio), settings))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def close(self) -> None:
        for task in self._requests:
            task.cancel()

    async def _request_text(self, number: int, pcm: bytes, settings: RecognizerSettings) -> None:
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


def to_wideband(pcm: bytes) -> bytes:
    """Return PCM at 8 kHz as PCM at `WIDEBAND_RATE`."""
    return audioop.ratecv(pcm, 2, 1, SAMPLE_RATE, WIDEBAND_RATE, None)[0]


def to_wav(pcm: bytes, rate: int = SAMPLE_RATE) -> bytes:
    """Return 16-bit PCM as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(pcm)
    return file.getvalue()
