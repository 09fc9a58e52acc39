"""`callagent bench models`: how fast a model answers, and how often it chooses the right function.

Each utterance of the file is one request with the few tools of its situation. A call is right when exactly the
expected functions are called; its arguments are right when they are the expected ones and no others. Beside the model,
what our own rendering and parsing of FunctionGemma's format costs for a step with ten functions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from callagent.bench.measurement import percentiles
from callagent.errors import ProviderError, UserError
from callagent.models import LanguageModel, Message, ModelSettings, Tool, Usage

if TYPE_CHECKING:
    from callagent.config import Config

UTTERANCES = Path(__file__).with_name("model_utterances.json")
_CHARACTERS_PER_TOKEN = 4
"""Of text or of a call, where the provider does not count."""
_RENDERINGS = 200
_TEN = 10


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Utterance:
    said: str
    tools: tuple[Tool, ...]
    expected: tuple[ExpectedCall, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One utterance, asked and answered."""

    said: str
    name_right: bool
    arguments_right: bool
    expects_call: bool
    first_token_ms: float
    whole_ms: float
    tokens: float
    calls: tuple[ExpectedCall, ...]
    error: str = ""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / (self.whole_ms / 1000) if self.whole_ms else 0.0


def read_utterances(path: Path) -> tuple[date, list[Utterance]]:
    """The day that the file's relative dates count from, and its utterances. Raises `UserError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        tools = {name: tuple(each) for name, each in data["tools"].items()}
        found = [
            Utterance(
                each["said"],
                tools[each["tools"]],
                tuple(ExpectedCall(call["name"], call["arguments"]) for call in each["calls"]),
            )
            for each in data["utterances"]
        ]
        return date.fromisoformat(data["today"]), found
    except OSError as error:
        raise UserError(f"utterances {path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"utterances {path}: not a file of utterances: {error!r}") from None


def bench_models(config: Config, options: argparse.Namespace) -> int:
    """Measure and print."""
    from callagent.config import override
    from callagent.server import open_language_model

    if options.model:
        config = override(config, {"model.name": options.model})
    today, utterances = read_utterances(options.utterances or UTTERANCES)
    model = open_language_model(config)
    trials = asyncio.run(_ask_all(model, today, utterances[: options.limit]))
    figures = {"model": config.model.name, **summarize(trials), **_format_cost(utterances)}
    if options.details:
        lines = [json.dumps(_detail(trial), ensure_ascii=False) for trial in trials]
        options.details.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(json.dumps(figures) if options.json else _describe(figures))
    return 0


async def _ask_all(model: LanguageModel, today: date, utterances: Sequence[Utterance]) -> list[Trial]:
    try:
        trials, tools = [], None
        for utterance in utterances:
            if utterance.tools is not tools:
                # Loading and preparing are no part of an answer: in a call the greeting leaves time for them.
                await ask(model, today, utterance)
                tools = utterance.tools
            trials.append(await ask(model, today, utterance))
        return trials
    finally:
        await model.close()


async def ask(model: LanguageModel, today: date, utterance: Utterance) -> Trial:
    """One request, timed; a failure of the model is an answer that is wrong."""
    began = time.perf_counter()
    first, length, usage, error = 0.0, 0, Usage(0, 0), ""
    calls: list[ExpectedCall] = []
    stream = model.stream(_messages(today, utterance.said), utterance.tools, ModelSettings(temperature=0.0))
    try:
        async with aclosing(cast("Any", stream)) as deltas:
            async for delta in deltas:
                first = first or time.perf_counter()
                length += len(delta.text)
                usage = delta.usage or usage
                if call := delta.tool_call:
                    length += len(call.name) + len(call.arguments)
                    calls.append(ExpectedCall(call.name, _object(call.arguments)))
    except ProviderError as failure:
        error = str(failure)
    ended = time.perf_counter()
    names, expected = [call.name for call in calls], [call.name for call in utterance.expected]
    right = names == expected and not error
    return Trial(
        said=utterance.said,
        name_right=right,
        arguments_right=right and all(map(_same, calls, utterance.expected)),
        expects_call=bool(expected),
        first_token_ms=((first or ended) - began) * 1000,
        whole_ms=(ended - began) * 1000,
        tokens=usage.output_tokens or length / _CHARACTERS_PER_TOKEN,
        calls=tuple(calls),
        error=error,
    )


def summarize(trials: Sequence[Trial]) -> dict[str, Any]:
    calling = [trial for trial in trials if trial.expects_call]
    others = [trial for trial in trials if not trial.expects_call]
    return {
        "utterances": len(trials),
        "function_right": sum(trial.name_right for trial in calling),
        "arguments_right": sum(trial.arguments_right for trial in calling),
        "with_function": len(calling),
        "refused_right": sum(trial.name_right for trial in others),
        "without_function": len(others),
        "errors": sum(bool(trial.error) for trial in trials),
        "first_token_ms": percentiles([trial.first_token_ms for trial in trials if not trial.error]),
        "answer_ms": percentiles([trial.whole_ms for trial in trials if not trial.error]),
        "tokens_per_second": percentiles([trial.tokens_per_second for trial in trials if not trial.error])["p50"],
    }


def _messages(today: date, said: str) -> list[Message]:
    # The day in words and in figures: models read one, rules the other.
    text = (
        f"You are the voice agent of a telephone line. Today is {today:%A}, {today.day} {today:%B %Y} "
        f"({today.isoformat()}). Call the function that the caller asks for. When none fits, say so."
    )
    return [{"role": "system", "content": text}, {"role": "user", "content": said}]


def _same(call: ExpectedCall, expected: ExpectedCall) -> bool:
    given = {key: value for key, value in call.arguments.items() if value not in (None, "")}
    return given.keys() == expected.arguments.keys() and all(
        _plain(given[key]) == _plain(value) for key, value in expected.arguments.items()
    )


def _plain(value: object) -> object:
    """What two ways of writing the same have in common: 50 and 50.0, "Okafor" and "okafor."."""
    if isinstance(value, str):
        return re.sub(r"[\W_]+", " ", value).strip().casefold()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _object(arguments: str) -> dict[str, Any]:
    try:
        data = json.loads(arguments)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _format_cost(utterances: Sequence[Utterance]) -> dict[str, float]:
    """Milliseconds to render a prompt with ten functions and to parse a call, in FunctionGemma's format."""
    from callagent.models.functiongemma import FUNCTIONGEMMA, FunctionCall, format_value, parse_output, render_prompt

    tools = list({tool["function"]["name"]: tool for each in utterances for tool in each.tools}.values())[:_TEN]
    messages = _messages(date(2026, 1, 1), "Where is my parcel?")
    call = FunctionCall("track_parcel", {"number": "441902"})
    body = ",".join(f"{key}:{format_value(value)}" for key, value in call.arguments.items())
    answer = f"{FUNCTIONGEMMA.start_call}call:{call.name}{{{body}}}{FUNCTIONGEMMA.end_call}"
    return {
        "functions_rendered": len(tools),
        "render_ms": _median_of(lambda: render_prompt(messages, tools)),
        "parse_ms": _median_of(lambda: parse_output(answer, tools)),
    }


def _median_of(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_RENDERINGS):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1000)
    return round(sorted(times)[_RENDERINGS // 2], 4)


def _detail(trial: Trial) -> dict[str, Any]:
    return {
        "said": trial.said,
        "function_right": trial.name_right,
        "arguments_right": trial.arguments_right,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in trial.calls],
        "answer_ms": round(trial.whole_ms, 1),
        "error": trial.error,
    }


def _describe(figures: Mapping[str, Any]) -> str:
    first, whole = figures["first_token_ms"], figures["answer_ms"]
    return "\n".join(
        [
            f"model              {figures['model']}",
            f"function right     {figures['function_right']} of {figures['with_function']}",
            f"  and arguments    {figures['arguments_right']} of {figures['with_function']}",
            f"no function, right {figures['refused_right']} of {figures['without_function']}",
            f"errors             {figures['errors']}",
            f"first token        p50 {first['p50']:.0f} ms   p99 {first['p99']:.0f} ms",
            f"whole answer       p50 {whole['p50']:.0f} ms   p99 {whole['p99']:.0f} ms",
            f"tokens a second    {figures['tokens_per_second']:.0f}",
            f"format             render {figures['render_ms']:.3f} ms ({figures['functions_rendered']} functions), "
            f"parse {figures['parse_ms']:.3f} ms",
        ]
    )
