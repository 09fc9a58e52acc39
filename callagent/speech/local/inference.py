"""Inference processes: what the core and a process say to each other, the loop in the process, and its supervision.

Messages are length-prefixed MessagePack on a socket pair. The core sends one `Load…`, answered by `Ready` or `Failed`;
then `Transcribe`, `Speak` or `Judge`, each answered once.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import callagent
from callagent.errors import ProviderError, UserError
from callagent.log import get_logger

MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of one message: four minutes of 24 kHz audio would fit."""


class _Message(msgspec.Struct, tag=True, array_like=True):
    pass


class LoadRecognizer(_Message):
    whisper_dir: str
    cache: str
    threads: int
    beam: int


class LoadVoice(_Message):
    pass


class LoadTurnModel(_Message):
    pass


class Ready(_Message):
    pass


class Failed(_Message):
    """The answer to a request that could not be served, or to a load (`number` 0)."""

    number: int
    reason: str
    user: bool = False
    """Somebody has to change a file or a setting; trying again does not help."""


class Transcribe(_Message):
    number: int
    pcm: bytes
    final: bool
    language: str = "en"
    expected: str = ""


class Transcribed(_Message):
    number: int
    texts: tuple[str, ...] = ()
    confidence: float | None = None


class Speak(_Message):
    """One sentence."""

    number: int
    text: str
    voice: str = ""
    speed: float = 1.0


class Spoken(_Message):
    number: int
    pcm: bytes
    words: tuple[tuple[str, float, float], ...] = ()


class Judge(_Message):
    """Has who spoke last in this finished?"""

    number: int
    pcm: bytes


class Judged(_Message):
    number: int
    probability: float


Load = LoadRecognizer | LoadVoice | LoadTurnModel
Request = Transcribe | Speak | Judge
Answer = Transcribed | Spoken | Judged | Failed
Message = Load | Request | Ready | Answer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises `EOFError` at the end, `ValueError` for what is none."""
    size = int.from_bytes(await reader.readexactly(4), "little")
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"message of {size} bytes is not valid")
    message: Message = _decoder.decode(await reader.readexactly(size))
    return message


def read_all(connection: socket.socket) -> Iterator[Message]:
    """Messages until the other side closes; blocks."""
    with connection.makefile("rb") as stream:
        while len(prefix := stream.read(4)) == 4:
            yield _decoder.decode(stream.read(int.from_bytes(prefix, "little")))


ENVIRONMENT = {
    # One request, one thread: more would fight each other for the processors.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent ends."""

LoadT = TypeVar("LoadT", bound=Load)
Serve = Callable[[Request], Answer]


def run(expected: type[LoadT], load: Callable[[LoadT], Serve], threads: Callable[[LoadT], int]) -> None:
    """Serve the core on the socket whose number is the first argument, until it closes it."""
    _prepare()
    connection = socket.socket(fileno=int(sys.argv[1]))
    messages = read_all(connection)
    settings = next(messages, None)
    if not isinstance(settings, expected):
        return
    try:
        serve = load(settings)
    except UserError as error:
        connection.sendall(encode(Failed(0, str(error), user=True)))
        return
    connection.sendall(encode(Ready()))
    sending = threading.Lock()

    def answer(request: Request) -> None:
        try:
            reply = encode(serve(request))
        except Exception as error:
            # The edge of one request: whatever an engine raises, the call that asked is told and the others go on.
            traceback.print_exc()
            reply = encode(Failed(request.number, f"{type(error).__name__}: {error}"))
        with sending:
            connection.sendall(reply)

    with ThreadPoolExecutor(threads(settings)) as pool:
        for message in messages:
            if isinstance(message, Request):
                pool.submit(answer, message)


def _prepare() -> None:
    """Before anything heavy is imported, since the libraries read their variables then."""
    os.environ.update(ENVIRONMENT)
    # Sent to all processes of the server by a terminal or a service manager, they are the core's to handle: it drains
    # its calls, which need speech until the last one ends, and then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Urgency(IntEnum):
    """Lower goes first."""

    NOW = 0
    """Somebody waits in silence for it."""
    SOON = 1
    """Somebody will, or may."""
    FIRST = 2
    """The first words of an utterance: they decide whether the agent goes on speaking."""
    PARTIAL = 3
    """May be dropped."""


class Job:
    """One request, made when its turn comes, so that it holds what is known then."""

    __slots__ = ("answered", "due", "make", "number", "urgency")

    def __init__(
        self,
        urgency: Urgency,
        make: Callable[[int], Request],
        answered: Callable[[Answer | None], None],
        due: float,
    ) -> None:
        self.urgency = urgency
        self.make = make
        self.answered = answered
        """Called once, unless the job was cancelled; None: the process died or the deadline passed."""
        self.due = due
        """Instant after which nobody waits for it; once it is being worked on, after which it hangs."""
        self.number = 0


class Jobs:
    """The jobs that wait, and the few that the process works on."""

    def __init__(self, at_once: int, partials: int, longest: float) -> None:
        self._at_once = at_once
        self._partials = partials
        """Partial transcripts that may wait; finals always may."""
        self._longest = longest
        """Seconds of work on one job; a process that takes more hangs."""
        self._waiting: list[tuple[int, int, Job]] = []
        self._live: dict[int, Job] = {}
        self._running: dict[int, Job] = {}
        self._cancelled: set[int] = set()
        self._count = 0
        self.dropped = 0
        """Partials refused since the start."""

    def add(self, job: Job) -> bool:
        """False: dropped, because enough partials wait."""
        if job.urgency is Urgency.PARTIAL and self._waiting_partials() >= self._partials:
            self.dropped += 1
            return False
        self._push(job)
        return True

    def hasten(self, job: Job, urgency: Urgency) -> None:
        """Move a waiting job forward; one that is being worked on stays as it is."""
        if job.number in self._live and urgency < job.urgency:
            del self._live[job.number]
            job.urgency = urgency
            self._push(job)

    def cancel(self, job: Job) -> None:
        """Nobody wants the answer."""
        self._live.pop(job.number, None)
        if self._running.get(job.number) is job:
            self._cancelled.add(job.number)

    def take(self, now: float) -> tuple[int, Job] | None:
        """The next job to send, with its number; None: nothing waits, or the process has enough to do."""
        if len(self._running) >= self._at_once:
            return None
        while self._waiting:
            number = heapq.heappop(self._waiting)[1]
            job = self._live.pop(number, None)
            if job is not None and job.due >= now:
                job.due = now + self._longest
                self._running[number] = job
                return number, job
            if job is not None:
                job.answered(None)
        return None

    def answer(self, number: int, answer: Answer | None) -> None:
        """The process answered (None: it did not) the job `number`."""
        job = self._running.pop(number, None)
        if job is None:
            return
        if number in self._cancelled:
            self._cancelled.remove(number)
        else:
            job.answered(answer)

    def abandon(self) -> None:
        """The process died: what it worked on has no answer."""
        for number in list(self._running):
            self.answer(number, None)

    def expire(self, now: float) -> bool:
        """Answer waiting jobs whose deadline passed; True if one that runs is over its own."""
        for number, job in list(self._live.items()):
            if job.due < now:
                del self._live[number]
                job.answered(None)
        return any(job.due < now for job in self._running.values())

    def clear(self) -> None:
        """Answer all with nothing."""
        self.abandon()
        for job in list(self._live.values()):
            job.answered(None)
        self._live.clear()
        self._waiting.clear()

    @property
    def idle(self) -> bool:
        return not self._live and not self._running

    def _waiting_partials(self) -> int:
        return sum(job.urgency is Urgency.PARTIAL for job in self._live.values())

    def _push(self, job: Job) -> None:
        self._count += 1
        job.number = self._count
        self._live[job.number] = job
        heapq.heappush(self._waiting, (job.urgency, job.number, job))


log = get_logger(__name__)

LOAD_SECONDS = 120.0
"""The first start puts the model together and reads it from a cold disk."""
WORK_SECONDS = 20.0
"""One request; a process that takes longer is killed."""
FIRST_PAUSE = 0.5
MAX_PAUSE = 30.0
"""Before a dead process is started again; doubles from the first to the longest."""
WATCH_SECONDS = 0.25
PACKAGES = Path(callagent.__file__).parent.parent


class Phase(Enum):
    DOWN = "down"
    LOADING = "loading"
    READY = "ready"
    CLOSED = "closed"


class Engine:
    """One inference process. When it dies, what it worked on has no answer, what waits goes to the next one."""

    def __init__(self, module: str, load: Load, *, at_once: int = 1, partials: int = 8) -> None:
        self._module = module
        self._load = load
        self._jobs = Jobs(at_once, partials, WORK_SECONDS)
        self._phase = Phase.DOWN
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._pause = FIRST_PAUSE

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Returns when the models are loaded. Raises `UserError` or `ProviderError`; then nothing is left running."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervision = asyncio.create_task(self._supervise(ready))
        try:
            await ready
        except BaseException:
            await self.close()
            raise

    def submit(self, job: Job) -> bool:
        """Returns at once; False: a partial was dropped, because the process is behind."""
        if self._phase is Phase.CLOSED:
            asyncio.get_running_loop().call_soon(job.answered, None)
            return True
        accepted = self._jobs.add(job)
        self._send()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._look)
        return accepted

    def hasten(self, job: Job, urgency: Urgency) -> None:
        self._jobs.hasten(job, urgency)

    def cancel(self, job: Job) -> None:
        self._jobs.cancel(job)

    async def close(self) -> None:
        self._enter(Phase.CLOSED)
        if self._watch:
            self._watch.cancel()
        if self._supervision:
            self._supervision.cancel()
            await asyncio.gather(self._supervision, return_exceptions=True)
        self._jobs.clear()

    async def _supervise(self, ready: asyncio.Future[None]) -> None:
        while True:
            self._enter(Phase.LOADING)
            reason = await self._live(ready)
            if not ready.done():
                ready.set_exception(reason)
                return
            self._enter(Phase.DOWN)
            self._jobs.abandon()
            log.error("inference_process_died", module=self._module, reason=str(reason), again_in=self._pause)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, MAX_PAUSE)

    async def _live(self, ready: asyncio.Future[None]) -> UserError | ProviderError:
        """One life of the process; returns why it ended."""
        try:
            await self._serve(ready)
        except UserError as error:
            return error
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            return ProviderError(f"the process {self._module} ended: {error!r}")
        return ProviderError(f"the process {self._module} ended")

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        self._process = None
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            # From here on the process is awaited however this ends: a cancelled start leaves none behind.
            try:
                self._process = await self._start_process(theirs)
                theirs.close()
                writer.write(encode(self._load))
                async with asyncio.timeout(LOAD_SECONDS):
                    _expect_ready(await read(reader))
                self._writer = writer
                self._enter(Phase.READY)
                if not ready.done():
                    ready.set_result(None)
                self._send()
                await self._receive(reader)
            finally:
                self._writer = None
                writer.close()
                await self._end_process()

    async def _start_process(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", self._module, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            # `-m` looks in the working directory first: that must be where callagent is, not a project.
            cwd=PACKAGES,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )

    async def _end_process(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await read(reader)
            if not isinstance(message, Answer):
                raise ValueError(f"{type(message).__name__} is not an answer")
            self._pause = FIRST_PAUSE
            # Not called from here: whoever fails on the answer must not end the process of all calls.
            loop.call_soon(self._jobs.answer, message.number, message)
            loop.call_soon(self._send)

    def _send(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._writer is not None and (taken := self._jobs.take(now)):
            number, job = taken
            self._writer.write(encode(job.make(number)))

    def _look(self) -> None:
        """Answer what nobody waits for any more; kill a process that hangs."""
        loop = asyncio.get_running_loop()
        self._watch = None
        if self._jobs.expire(loop.time()) and self._process and self._process.returncode is None:
            self._process.kill()
        if not self._jobs.idle:
            self._watch = loop.call_later(WATCH_SECONDS, self._look)

    def _enter(self, phase: Phase) -> None:
        if self._phase is not Phase.CLOSED and phase is not self._phase:
            log.debug("inference_process", module=self._module, old=self._phase.value, new=phase.value)
            self._phase = phase


def _expect_ready(message: Message) -> None:
    if isinstance(message, Failed):
        raise UserError(message.reason) if message.user else ValueError(message.reason)
    if not isinstance(message, Ready):
        raise ValueError(f"{type(message).__name__} is not the answer to a load")
