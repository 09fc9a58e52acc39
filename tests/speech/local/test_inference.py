"""Real processes that die, hang, fail and come back; which job is next; messages however their bytes are cut."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from callagent.errors import ProviderError, UserError
from callagent.speech.local import inference
from callagent.speech.local.inference import Engine, Job, JobQueue, Phase, Urgency

VOICE = "tests.speech.local.echo_voice_process"
RECOGNIZER = "tests.speech.local.echo_process"


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(VOICE, inference.LoadVoice())
    await engine.start()
    yield engine
    await engine.close()


def ask(engine: Engine, text: str, urgency: Urgency = Urgency.NOW, due: float = 30) -> asyncio.Future[str | None]:
    """What the process says to `text`; None: it did not answer."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def answered(spoken: inference.Answer | None) -> None:
        match spoken:
            case inference.Spoken(pcm=pcm):
                answer.set_result(pcm.decode())
            case inference.Failed(reason=reason):
                answer.set_result(f"failed: {reason}")
            case _:
                answer.set_result(None)

    engine.submit(Job(urgency, lambda number: inference.Speak(number, text), answered, loop.time() + due))
    return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_requests_are_answered(engine: Engine) -> None:
    assert engine.phase is Phase.READY
    assert await asyncio.gather(*(ask(engine, f"hello {n}") for n in range(5))) == [f"hello {n}" for n in range(5)]


async def test_a_failed_request_is_told_and_the_process_goes_on(engine: Engine) -> None:
    pid = engine.pid
    assert await ask(engine, "fail") == "failed: KeyError: 'no such sound'"
    assert await ask(engine, "hello") == "hello"
    assert engine.pid == pid


async def test_finals_overtake_while_the_process_is_busy(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    order: list[str | None] = []
    busy = ask(engine, f"wait {go}")
    waiting = [ask(engine, urgency.name, urgency) for urgency in (Urgency.PARTIAL, Urgency.SOON, Urgency.NOW)]
    for answer in waiting:
        answer.add_done_callback(lambda answer: order.append(answer.result()))
    await asyncio.sleep(0)
    go.touch()
    await asyncio.gather(busy, *waiting)
    assert order == ["NOW", "SOON", "PARTIAL"]


async def test_a_dead_process_is_replaced_and_serves_what_waited(engine: Engine) -> None:
    pid = engine.pid
    dying, waiting = ask(engine, "die"), ask(engine, "hello")
    assert await dying is None
    assert await waiting == "hello"
    assert engine.pid != pid


async def test_a_killed_process_is_replaced(engine: Engine) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.phase is not Phase.READY)
    assert await ask(engine, "hello") == "hello"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_whole_server_does_not_end_speech_while_calls_drain(
    engine: Engine, number: signal.Signals
) -> None:
    pid = engine.pid
    assert pid is not None
    os.kill(pid, number)
    assert await ask(engine, "hello") == "hello"
    assert engine.pid == pid


async def test_a_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "WORK_SECONDS", 0.2)
    engine = Engine(VOICE, inference.LoadVoice())
    await engine.start()
    try:
        hanging, waiting = ask(engine, "hang"), ask(engine, "hello")
        async with asyncio.timeout(20):
            assert await hanging is None
            assert await waiting == "hello"
    finally:
        await engine.close()


async def test_nobody_waits_for_a_process_that_stays_down(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_module", "tests.speech.local.no_such_process")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.phase is not Phase.READY)
    assert await ask(engine, "hello", due=0.3) is None


async def test_closing_ends_the_process_and_answers_everybody(engine: Engine) -> None:
    assert engine.pid is not None
    assert alive(engine.pid)
    hanging, waiting = ask(engine, "hang"), ask(engine, "hello")
    await asyncio.sleep(0)
    await engine.close()
    assert (await hanging, await waiting) == (None, None)
    assert not alive(engine.pid)
    assert await ask(engine, "too late") is None
    assert engine.phase is Phase.CLOSED


async def test_a_listener_that_fails_harms_nobody_else(engine: Engine) -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))

    def fails(answer: inference.Answer | None) -> None:
        raise RuntimeError("listener")

    engine.submit(Job(Urgency.NOW, lambda number: inference.Speak(number, "one"), fails, loop.time() + 30))
    assert await ask(engine, "two") == "two"
    assert [str(complaint) for complaint in complaints] == ["listener"]


async def test_a_process_that_cannot_load_says_why_and_is_not_tried_again() -> None:
    engine = Engine(RECOGNIZER, inference.LoadRecognizer("missing", "", 1, 1))
    with pytest.raises(UserError, match="missing: not a model"):
        await engine.start()
    assert engine.phase is Phase.CLOSED


async def test_a_process_that_dies_while_loading_is_a_provider_error() -> None:
    engine = Engine(RECOGNIZER, inference.LoadRecognizer("dies", "", 1, 1))
    with pytest.raises(ProviderError, match="ended"):
        await engine.start()
    assert engine.phase is Phase.CLOSED


@pytest.mark.parametrize("steps", range(1, 40, 2))
async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_process(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[asyncio.subprocess.Process] = []

    async def create(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await create_process(*arguments, **options))
        return started[-1]

    create_process = asyncio.create_subprocess_exec
    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    engine = Engine(VOICE, inference.LoadVoice())
    starting = asyncio.create_task(engine.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await engine.close()
    assert [process.returncode for process in started if process.returncode is None] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_the_process_dies_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "core.py"
    script.write_text(
        "import asyncio\n"
        "from callagent.speech.local import inference\n"
        "from callagent.speech.local.inference import Engine\n"
        "async def main():\n"
        f"    engine = Engine({VOICE!r}, inference.LoadVoice())\n"
        "    await engine.start()\n"
        "    print(engine.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = str(inference.PACKAGES)
    core = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert core.stdout is not None
    child = int(await core.stdout.readline())
    assert alive(child)
    core.kill()
    await core.wait()
    await until(lambda: not alive(child))


NOW, SOON, FIRST, PARTIAL = Urgency


class Answers(list[tuple[str, inference.Answer | None]]):
    """Who was answered what, in order."""

    def job(self, name: str, urgency: Urgency, due: float = 100.0) -> Job:
        return Job(
            urgency, lambda number: inference.Speak(number, name), lambda answer: self.append((name, answer)), due
        )


def text(taken: tuple[int, Job] | None) -> str | None:
    if taken is None:
        return None
    request = taken[1].make_request(taken[0])
    assert isinstance(request, inference.Speak)
    return request.text


def test_a_final_goes_before_what_waited_longer() -> None:
    answers, jobs = Answers(), JobQueue(at_once=5, max_partials=8, max_seconds=20)
    in_order_of_coming = [("partial", PARTIAL), ("first", FIRST), ("draft", SOON), ("final", NOW), ("final 2", NOW)]
    for name, urgency in in_order_of_coming:
        assert jobs.add(answers.job(name, urgency))
    assert [text(jobs.next_to_send(0)) for _ in range(6)] == ["final", "final 2", "draft", "first", "partial", None]


def test_the_process_gets_no_more_than_it_works_on_at_once() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=8, max_seconds=20)
    for name in ("one", "two"):
        jobs.add(answers.job(name, NOW))
    taken = jobs.next_to_send(0)
    assert text(taken) == "one"
    assert taken is not None
    assert jobs.next_to_send(0) is None
    spoken = inference.Spoken(taken[0], b"")
    jobs.answer(taken[0], spoken)
    assert answers == [("one", spoken)]
    assert text(jobs.next_to_send(0)) == "two"


def test_partials_are_dropped_when_enough_wait_and_finals_never() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=2, max_seconds=20)
    assert [jobs.add(answers.job(str(n), PARTIAL)) for n in range(4)] == [True, True, False, False]
    assert all(jobs.add(answers.job(str(n), NOW)) for n in range(50))
    assert jobs.dropped == 2
    assert answers == []


def test_a_hastened_draft_overtakes() -> None:
    answers, jobs = Answers(), JobQueue(at_once=9, max_partials=2, max_seconds=20)
    first, second = answers.job("first", SOON), answers.job("second", SOON)
    jobs.add(first)
    jobs.add(second)
    jobs.hasten(second, NOW)
    assert [text(jobs.next_to_send(0)) for _ in range(3)] == ["second", "first", None]


def test_hastening_a_running_job_changes_nothing() -> None:
    answers, jobs = Answers(), JobQueue(at_once=9, max_partials=2, max_seconds=20)
    job = answers.job("draft", SOON)
    jobs.add(job)
    taken = jobs.next_to_send(0)
    assert taken is not None
    jobs.hasten(job, NOW)
    assert jobs.next_to_send(0) is None
    jobs.answer(taken[0], None)
    assert answers == [("draft", None)]


def test_a_cancelled_job_is_not_sent_and_not_answered() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=2, max_seconds=20)
    running, waiting = answers.job("running", NOW), answers.job("waiting", NOW)
    jobs.add(running)
    jobs.add(waiting)
    taken = jobs.next_to_send(0)
    assert taken is not None
    jobs.cancel(running)
    jobs.cancel(waiting)
    jobs.answer(taken[0], inference.Spoken(taken[0], b""))
    assert jobs.next_to_send(0) is None
    assert answers == []
    assert jobs.is_idle


def test_a_dead_process_leaves_its_jobs_unanswered_and_the_waiting_ones_in_place() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=2, max_seconds=20)
    for name in ("running", "waiting"):
        jobs.add(answers.job(name, NOW))
    jobs.next_to_send(0)
    jobs.abandon()
    assert answers == [("running", None)]
    assert text(jobs.next_to_send(0)) == "waiting"


def test_nobody_waits_longer_than_the_deadline() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=2, max_seconds=20)
    jobs.add(answers.job("late", NOW, due=5))
    jobs.add(answers.job("later", NOW, due=9))
    assert not jobs.expire(6)
    assert answers == [("late", None)]
    assert jobs.next_to_send(10) is None
    assert answers == [("late", None), ("later", None)]


def test_a_running_job_hangs_only_after_the_longest_work() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=2, max_seconds=20)
    jobs.add(answers.job("slow", NOW, due=5))
    jobs.next_to_send(4)
    assert not jobs.expire(23)
    assert jobs.expire(25)
    assert answers == []


def test_an_answer_nobody_asked_for_is_ignored() -> None:
    jobs = JobQueue(at_once=1, max_partials=2, max_seconds=20)
    jobs.answer(7, inference.Spoken(7, b""))
    assert jobs.is_idle


def test_clearing_answers_everybody() -> None:
    answers, jobs = Answers(), JobQueue(at_once=1, max_partials=2, max_seconds=20)
    for name in ("running", "waiting"):
        jobs.add(answers.job(name, NOW))
    jobs.next_to_send(0)
    jobs.clear()
    assert answers == [("running", None), ("waiting", None)]
    assert jobs.next_to_send(0) is None
    assert jobs.is_idle


MESSAGES: list[inference.Message] = [
    inference.LoadRecognizer("dir", "/cache", 2, 5),
    inference.LoadVoice(),
    inference.Ready(),
    inference.Failed(3, "no such voice"),
    inference.Transcribe(4, bytes(range(256)) * 999, True, "en", "5 5 5"),
    inference.Transcribed(4, ("one", "two"), 0.5),
    inference.Speak(5, "Grüß Gott", "heart", 1.2),
    inference.Spoken(5, b"\x00\x01", (("Grüß", 0.0, 0.5),)),
]


async def test_the_core_reads_what_was_written_byte_by_byte() -> None:
    reader = asyncio.StreamReader()
    for message in MESSAGES:
        for byte in inference.encode(message)[:8000]:
            reader.feed_data(bytes([byte]))
        reader.feed_data(inference.encode(message)[8000:])
    reader.feed_eof()
    assert [await inference.read_message(reader) for _ in MESSAGES] == MESSAGES
    with pytest.raises(EOFError):
        await inference.read_message(reader)


def test_the_process_reads_until_the_core_closes() -> None:
    ours, theirs = socket.socketpair()
    small = [message for message in MESSAGES if len(inference.encode(message)) < 1000]
    with theirs:
        with ours:
            for message in small:
                ours.sendall(inference.encode(message))
            ours.sendall(b"\x09")
        assert list(inference.read_messages(theirs)) == small


@pytest.mark.parametrize("missing", [1, 5])
def test_the_process_ends_where_the_core_is_cut_off_in_a_message(missing: int) -> None:
    ours, theirs = socket.socketpair()
    whole, cut = inference.Failed(1, "first"), inference.Failed(2, "second")
    with theirs:
        with ours:
            ours.sendall(inference.encode(whole) + inference.encode(cut)[:-missing])
        assert list(inference.read_messages(theirs)) == [whole]


def test_the_process_refuses_a_message_that_is_too_long_before_it_reads_it() -> None:
    ours, theirs = socket.socketpair()
    # The other side stays open: a reader that waits for the body would wait for ever.
    theirs.settimeout(5)
    with ours, theirs:
        ours.sendall((inference.MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(ValueError, match="is not valid"):
            next(inference.read_messages(theirs))


async def test_what_is_no_message_is_refused() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data((inference.MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="is not valid"):
        await inference.read_message(reader)
    reader = asyncio.StreamReader()
    reader.feed_data(b"\x01\x00\x00\x00\xc1")
    with pytest.raises(msgspec.DecodeError):
        await inference.read_message(reader)
