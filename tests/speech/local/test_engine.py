"""Real processes that die, hang, fail and come back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from callagent.errors import ProviderError, UserError
from callagent.speech.local import engine as engine_module
from callagent.speech.local import wire
from callagent.speech.local.engine import Engine, Job, Phase, Urgency

VOICE = "tests.speech.local.echo_voice_process"
RECOGNIZER = "tests.speech.local.echo_process"


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(VOICE, wire.LoadVoice())
    await engine.start()
    yield engine
    await engine.close()


def ask(engine: Engine, text: str, urgency: Urgency = Urgency.NOW, due: float = 30) -> asyncio.Future[str | None]:
    """What the process says to `text`; None: it did not answer."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def answered(spoken: wire.Answer | None) -> None:
        match spoken:
            case wire.Spoken(pcm=pcm):
                answer.set_result(pcm.decode())
            case wire.Failed(reason=reason):
                answer.set_result(f"failed: {reason}")
            case _:
                answer.set_result(None)

    engine.submit(Job(urgency, lambda number: wire.Speak(number, text), answered, loop.time() + due))
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
    monkeypatch.setattr(engine_module, "WORK_SECONDS", 0.2)
    engine = Engine(VOICE, wire.LoadVoice())
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

    def fails(answer: wire.Answer | None) -> None:
        raise RuntimeError("listener")

    engine.submit(Job(Urgency.NOW, lambda number: wire.Speak(number, "one"), fails, loop.time() + 30))
    assert await ask(engine, "two") == "two"
    assert [str(complaint) for complaint in complaints] == ["listener"]


async def test_a_process_that_cannot_load_says_why_and_is_not_tried_again() -> None:
    engine = Engine(RECOGNIZER, wire.LoadRecognizer("missing", "", 1, 1))
    with pytest.raises(UserError, match="missing: not a model"):
        await engine.start()
    assert engine.phase is Phase.CLOSED


async def test_a_process_that_dies_while_loading_is_a_provider_error() -> None:
    engine = Engine(RECOGNIZER, wire.LoadRecognizer("dies", "", 1, 1))
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
    engine = Engine(VOICE, wire.LoadVoice())
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
        "from callagent.speech.local import wire\n"
        "from callagent.speech.local.engine import Engine\n"
        "async def main():\n"
        f"    engine = Engine({VOICE!r}, wire.LoadVoice())\n"
        "    await engine.start()\n"
        "    print(engine.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = str(engine_module.PACKAGES)
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
