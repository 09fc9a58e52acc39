"""Inference processes: their messages, the loop in the process, and the supervision by the server's process, the core.

Messages are length-prefixed MessagePack on a socket pair. The core sends one `Load…`, answered by `Ready` or `Failed`;
then any number of `Transcribe`, `Speak` or `Judge`, each answered once.
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
from typing import TypeVar

import msgspec

import callagent
from callagent.errors import ProviderError, UserError
from callagent.log import get_logger

MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of one message: four minutes of 24 kHz audio would fit."""


class _Message(msgspec.Struct, tag=True, array_like=True):
    """The base of all messages; on the wire each is an array that begins with the name of its class."""


class LoadRecognizer(_Message):
    """The request to load the Whisper models, with the fields of `RecognizerOptions`."""

    whisper_dir: str
    cache: str
    threads: int
    beam: int


class LoadVoice(_Message):
    """The request to load the voice."""


class LoadTurnModel(_Message):
    """The request to load the turn model."""


class Ready(_Message):
    """The answer to a load: the process accepts requests."""


class Failed(_Message):
    """The answer to a request that could not be served, or to a load (`number` 0)."""

    number: int
    reason: str
    is_user_error: bool = False
    """Whether somebody has to change a file or a setting before the load can succeed."""


class Transcribe(_Message):
    """The request for the text of some audio."""

    number: int
    pcm: bytes
    final: bool
    """Whether the better and slower model is to be used."""
    language: str = "en"
    expected: str = ""
    """The answer that the caller is expected to give, or keywords; for the better model."""


class Transcribed(_Message):
    """The answer to `Transcribe`."""

    number: int
    texts: tuple[str, ...] = ()
    """The likeliest first; empty if nothing was said."""
    confidence: float | None = None


class Speak(_Message):
    """The request to synthesise one sentence."""

    number: int
    text: str
    voice: str = ""
    speed: float = 1.0


class Spoken(_Message):
    """The answer to `Speak`."""

    number: int
    pcm: bytes
    words: tuple[tuple[str, float, float], ...] = ()
    """Each word with its start and end in seconds."""


class Judge(_Message):
    """The request to judge whether the person who speaks in some audio has finished."""

    number: int
    pcm: bytes


class Judged(_Message):
    """The answer to `Judge`."""

    number: int
    probability: float


Load = LoadRecognizer | LoadVoice | LoadTurnModel
Request = Transcribe | Speak | Judge
Answer = Transcribed | Spoken | Judged | Failed
Message = Load | Request | Ready | Answer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return a message with its length in front of it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Return the next message. Raises `EOFError` at the end, `ValueError` for an invalid message."""
    size = _message_size(await reader.readexactly(4))
    return _decoder.decode(await reader.readexactly(size))


def read_messages(connection: socket.socket) -> Iterator[Message]:
    """Yield messages until the other side closes; blocks. Raises `ValueError` for an invalid message."""
    with connection.makefile("rb") as stream:
        while len(prefix := stream.read(4)) == 4:
            size = _message_size(prefix)
            body = stream.read(size)
            # The other side has closed, or was killed, before it had written the whole message.
            if len(body) < size:
                return
            yield _decoder.decode(body)


def _message_size(prefix: bytes) -> int:
    """Return the length of the message after its first four bytes. Raises `ValueError` if it is too long."""
    size = int.from_bytes(prefix, "little")
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {size} bytes is not valid: the limit is {MAX_MESSAGE_BYTES}")
    return size


ENVIRONMENT = {
    # Each request has one thread: more threads would compete for the processors.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal for a process whose parent ends."""

LoadT = TypeVar("LoadT", bound=Load)
Serve = Callable[[Request], Answer]
"""Computes the answer to a request; called in several threads at a time if the engine allows it."""


def run(expected: type[LoadT], load: Callable[[LoadT], Serve], threads: Callable[[LoadT], int]) -> None:
    """Run an inference process: serve the core on the socket numbered in `sys.argv[1]`, until it is closed.

    `load` loads the models, `threads` says how many requests it serves at a time.
    """
    _prepare()
    connection = socket.socket(fileno=int(sys.argv[1]))
    messages = read_messages(connection)
    settings = next(messages, None)
    if not isinstance(settings, expected):
        return
    try:
        serve = load(settings)
    except UserError as error:
        connection.sendall(encode(Failed(0, str(error), is_user_error=True)))
        return
    connection.sendall(encode(Ready()))
    # Several threads send answers over one socket: the lock keeps each answer in one piece.
    sending = threading.Lock()

    def answer(request: Request) -> None:
        try:
            reply = encode(serve(request))
        except Exception as error:
            # The boundary of one request: an engine's exception becomes the answer, and requests of other calls go on.
            traceback.print_exc()
            reply = encode(Failed(request.number, f"{type(error).__name__}: {error}"))
        with sending:
            connection.sendall(reply)

    # The messages end when the core closes the socket; leaving the block then finishes the requests being served.
    with ThreadPoolExecutor(threads(settings)) as pool:
        for message in messages:
            if isinstance(message, Request):
                pool.submit(answer, message)


def _prepare() -> None:
    """Prepare the process before anything heavy is imported: libraries read these variables when they are loaded."""
    os.environ.update(ENVIRONMENT)
    # A terminal or a service manager sends these signals to all processes of the server. Only the core is to handle
    # them: it drains its calls, which need speech until the last one ends, and then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # If the core is killed, the kernel ends this process as well.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Urgency(IntEnum):
    """How soon a job's answer is needed; lower goes first."""

    NOW = 0
    """A caller waits in silence for it."""
    SOON = 1
    """A caller may have to wait for it soon."""
    FIRST_WORDS = 2
    """The first partial transcript of an utterance, which decides whether the agent goes on speaking."""
    PARTIAL = 3
    """A partial transcript, which may be dropped."""


class Job:
    """A request to be sent. It is made only when it is sent, so that it has the latest audio."""

    __slots__ = ("deadline", "make_request", "number", "on_answer", "urgency")

    def __init__(
        self,
        urgency: Urgency,
        make_request: Callable[[int], Request],
        on_answer: Callable[[Answer | None], None],
        deadline: float,
    ) -> None:
        self.urgency = urgency
        self.make_request = make_request
        self.on_answer = on_answer
        """Called once, unless the job was cancelled; with None if the process died or the deadline passed."""
        self.deadline = deadline
        """On the loop's clock: when it passes, a waiting job is given up, and a process at work on it is killed."""
        self.number = 0
        """Its order in the queue and the number of its request; a new one when the job is moved forward."""


class JobQueue:
    """The waiting jobs, and the few that the process works on. It does no I/O and has no clock.

    The process itself has no queue: it gets a job only when it is free, so that the most urgent one is always next.
    """

    def __init__(self, at_once: int, max_partials: int, max_seconds: float) -> None:
        self._at_once = at_once
        self._max_partials = max_partials
        """Partial transcripts that may wait; final ones always may."""
        self._max_seconds = max_seconds
        """Seconds of work on one job; a process that takes more counts as hung."""
        self._heap: list[tuple[int, int, Job]] = []
        """A heap by urgency and number. Entries of jobs that are no longer in `_waiting` are skipped."""
        self._waiting: dict[int, Job] = {}
        """Jobs that wait, by number."""
        self._running: dict[int, Job] = {}
        """Jobs that the process works on, by number."""
        self._cancelled: set[int] = set()
        """Numbers of running jobs whose answers nobody wants."""
        self._count = 0
        self.dropped = 0
        """Partial transcripts refused since the start."""

    def add(self, job: Job) -> bool:
        """Queue a job; return False if it is dropped, because enough partial transcripts wait."""
        if job.urgency is Urgency.PARTIAL and self._waiting_partials() >= self._max_partials:
            self.dropped += 1
            return False
        self._push(job)
        return True

    def hasten(self, job: Job, urgency: Urgency) -> None:
        """Make a waiting job more urgent; a job that the process works on stays as it is."""
        if job.number in self._waiting and urgency < job.urgency:
            # Its old entry stays in the heap and is skipped: removing from the middle of a heap would cost a search.
            del self._waiting[job.number]
            job.urgency = urgency
            self._push(job)

    def cancel(self, job: Job) -> None:
        """Remove a job. If the process works on it already, only its answer is dropped."""
        self._waiting.pop(job.number, None)
        if self._running.get(job.number) is job:
            self._cancelled.add(job.number)

    def next_to_send(self, now: float) -> tuple[int, Job] | None:
        """Return the next job to send, with its number; None if none waits or the process is busy."""
        if len(self._running) >= self._at_once:
            return None
        while self._heap:
            number = heapq.heappop(self._heap)[1]
            job = self._waiting.pop(number, None)
            if job is not None and job.deadline >= now:
                # From now on the deadline bounds the work of the process.
                job.deadline = now + self._max_seconds
                self._running[number] = job
                return number, job
            if job is not None:
                job.on_answer(None)
        return None

    def answer(self, number: int, answer: Answer | None) -> None:
        """Finish the job `number` with the process's answer, or None if the process has died."""
        job = self._running.pop(number, None)
        if job is None:
            return
        if number in self._cancelled:
            self._cancelled.remove(number)
        else:
            job.on_answer(answer)

    def abandon(self) -> None:
        """Answer with None the jobs that the process worked on, because it has died."""
        for number in list(self._running):
            self.answer(number, None)

    def expire(self, now: float) -> bool:
        """Answer with None the waiting jobs whose deadline has passed; return whether a running job's has passed."""
        for number, job in list(self._waiting.items()):
            if job.deadline < now:
                del self._waiting[number]
                job.on_answer(None)
        return any(job.deadline < now for job in self._running.values())

    def clear(self) -> None:
        """Answer all jobs with None."""
        self.abandon()
        for job in list(self._waiting.values()):
            job.on_answer(None)
        self._waiting.clear()
        self._heap.clear()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def _waiting_partials(self) -> int:
        return sum(job.urgency is Urgency.PARTIAL for job in self._waiting.values())

    def _push(self, job: Job) -> None:
        self._count += 1
        job.number = self._count
        self._waiting[job.number] = job
        heapq.heappush(self._heap, (job.urgency, job.number, job))


log = get_logger(__name__)

LOAD_SECONDS = 120.0
"""Time to load: the first start assembles the model and reads it from a cold disk."""
WORK_SECONDS = 20.0
"""Time for one request; a process that takes longer is killed."""
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
"""Limit of the time before a dead process is started again, which doubles with each death."""
WATCH_SECONDS = 0.25
"""Time between two checks of the deadlines."""
PACKAGES = Path(callagent.__file__).parent.parent
"""The folder that callagent is installed in."""


class Phase(Enum):
    """The state of an inference process."""

    DOWN = "down"
    LOADING = "loading"
    READY = "ready"
    CLOSED = "closed"


class Engine:
    """One inference process and its supervision, shared by all calls.

    When the process dies, the jobs that it worked on are answered with None. The waiting jobs go to the next process,
    which is started after a pause.
    """

    def __init__(self, module: str, load: Load, *, at_once: int = 1, partials: int = 8) -> None:
        """Run `module` with `-m`, with `at_once` requests at a time; at most `partials` partial transcripts wait."""
        self._module = module
        self._load = load
        self._jobs = JobQueue(at_once, partials, WORK_SECONDS)
        self._phase = Phase.DOWN
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Return when the models are loaded. Raises `UserError` or `ProviderError`, and leaves no process running."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervision = asyncio.create_task(self._supervise(ready))
        started = False
        try:
            await ready
            started = True
        finally:
            # A start that is cancelled leaves no process behind either.
            if not started:
                await self.close()

    def submit(self, job: Job) -> bool:
        """Queue a job; return False if it is dropped, because enough partial transcripts wait."""
        if self._phase is Phase.CLOSED:
            # The answer does not come from inside submit(), because its caller does not expect it yet.
            asyncio.get_running_loop().call_soon(job.on_answer, None)
            return True
        accepted = self._jobs.add(job)
        self._send()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._check_deadlines)
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
        """Restart the process whenever it has died; give up if it fails to start the first time."""
        while True:
            self._enter(Phase.LOADING)
            reason = await self._run_once(ready)
            if not ready.done():
                ready.set_exception(reason)
                return
            # Only the jobs that it worked on are lost: one of them may have killed it.
            self._enter(Phase.DOWN)
            self._jobs.abandon()
            log.error("inference_process_died", module=self._module, reason=str(reason), again_in=self._pause)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    async def _run_once(self, ready: asyncio.Future[None]) -> UserError | ProviderError:
        """Run the process until it ends; return why it did."""
        try:
            await self._serve(ready)
        except UserError as error:
            return error
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            return ProviderError(f"the process {self._module} ended: {error!r}")
        return ProviderError(f"the process {self._module} ended")

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        """Start the process, load its models, and exchange requests and answers until either side ends."""
        self._process = None
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            # However this block ends, the process is awaited: even a cancelled start leaves no zombie behind.
            try:
                self._process = await self._start_process(theirs)
                theirs.close()
                writer.write(encode(self._load))
                async with asyncio.timeout(LOAD_SECONDS):
                    _expect_ready(await read_message(reader))
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
            # `-m` looks for modules in the working directory first: a project's files must not be taken for ours.
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
            message = await read_message(reader)
            if not isinstance(message, Answer):
                raise ValueError(f"{type(message).__name__} is not an answer")
            # The process works, because it answers: after its next death the pause is short again.
            self._pause = FIRST_PAUSE_SECONDS
            # The loop calls `on_answer`, not this task: an exception in it must not end the process of all calls.
            loop.call_soon(self._jobs.answer, message.number, message)
            loop.call_soon(self._send)

    def _send(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._writer is not None and (taken := self._jobs.next_to_send(now)):
            number, job = taken
            self._writer.write(encode(job.make_request(number)))

    def _check_deadlines(self) -> None:
        """Answer with None the waiting jobs whose deadline has passed; kill a process that hangs."""
        loop = asyncio.get_running_loop()
        self._watch = None
        if self._jobs.expire(loop.time()) and self._process and self._process.returncode is None:
            self._process.kill()
        if not self._jobs.is_idle:
            self._watch = loop.call_later(WATCH_SECONDS, self._check_deadlines)

    def _enter(self, phase: Phase) -> None:
        # CLOSED is final: the supervision of a closed engine may still be ending.
        if self._phase is not Phase.CLOSED and phase is not self._phase:
            log.debug("inference_process_phase", module=self._module, old=self._phase.value, new=phase.value)
            self._phase = phase


def _expect_ready(message: Message) -> None:
    """Check that a load succeeded. Raises `UserError` if somebody has to act, else `ValueError`."""
    if isinstance(message, Failed):
        raise UserError(message.reason) if message.is_user_error else ValueError(message.reason)
    if not isinstance(message, Ready):
        raise ValueError(f"{type(message).__name__} is not the answer to a load")
