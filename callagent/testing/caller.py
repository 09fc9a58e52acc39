"""Who plays the caller in a test: lines from a file, or a language model that is given the scenario."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from callagent.errors import ProviderTimeout, UserError
from callagent.models.protocol import LanguageModel, Message, ModelSettings

MODEL_SECONDS = 60.0
HANG_UP = "[HANG UP]"
_INSTRUCTIONS = """\
You play a person on the phone with a company's automated agent. Stay in this role:

{scenario}

Write only what the person says next: one short spoken turn in the language {language}, no stage directions. \
Give a detail when the agent asks for it, not before. When your business is done, or the agent has said goodbye \
or transfers you, write only {hang_up}."""


class Caller(Protocol):
    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        """What the caller says after `conversation`, pairs of `caller` or `agent` and words. None: hangs up."""


@dataclass(slots=True)
class ScriptedCaller:
    lines: Sequence[str]
    _next: int = 0

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        if self._next >= len(self.lines):
            return None
        self._next += 1
        return self.lines[self._next - 1]


@dataclass(frozen=True, slots=True)
class ModelCaller:
    model: LanguageModel
    scenario: str
    language: str

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        instructions = _INSTRUCTIONS.format(scenario=self.scenario, language=self.language, hang_up=HANG_UP)
        messages: list[Message] = [{"role": "system", "content": instructions}]
        # Seen from the caller's side: the agent's words are what the model is told.
        roles = {"agent": "user", "caller": "assistant"}
        messages += [{"role": roles[who], "content": words or "(silence)"} for who, words in conversation]
        text = (await ask(self.model, messages)).strip()
        return None if HANG_UP in text else text


async def ask(model: LanguageModel, messages: Sequence[Message], *, json_output: bool = False) -> str:
    """One whole answer. Raises `ProviderError`."""
    text = ""
    try:
        async with (
            asyncio.timeout(MODEL_SECONDS),
            aclosing(cast("Any", model.stream(messages, [], ModelSettings(json_output=json_output)))) as deltas,
        ):
            async for delta in deltas:
                text += delta.text
    except TimeoutError as error:
        raise ProviderTimeout("the model that plays the caller did not answer in time") from error
    return text


@dataclass(frozen=True, slots=True)
class Lines:
    """What a caller file holds for one test."""

    says: tuple[str, ...]
    model: tuple[Mapping[str, Any], ...] | None = None
    """A model script for the agent; None: the configured model."""
    judge: tuple[Mapping[str, Any], ...] = field(default=())
    """A model script for the judge of the prompt assertions."""


def read_caller_file(path: Path) -> dict[str, Lines]:
    """Test name -> its lines. Raises `UserError` naming file and test."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"caller file {path} cannot be read: {error}") from None
    except YAMLError as error:
        raise UserError(f"caller file {path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"caller file {path}: expected a map from test name to the caller's lines")
    return {str(name): _lines(entry, f"caller file {path}, test '{name}'") for name, entry in data.items()}


def _lines(entry: object, place: str) -> Lines:
    if isinstance(entry, list):
        return Lines(_texts(entry, place))
    if not isinstance(entry, dict) or set(entry) - {"says", "model", "judge"} or "says" not in entry:
        raise UserError(f"{place}: expected a list of lines, or a map of says, model and judge")
    model = entry.get("model")
    return Lines(
        says=_texts(entry["says"], place),
        model=None if model is None else _entries(model, place),
        judge=_entries(entry.get("judge") or [], place),
    )


def _texts(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise UserError(f"{place}: the caller's lines are a list of texts; put numbers in quotes")
    return tuple(value)


def _entries(value: object, place: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UserError(f"{place}: a model script is a list of maps")
    return tuple(value)
