"""Rows for tuning the model on a project's own functions, in the model's own format."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callagent.models.functiongemma.declarations import function_of
from callagent.models.functiongemma.format import FUNCTIONGEMMA, TokenSet, format_value
from callagent.models.functiongemma.model import one_utterance
from callagent.models.functiongemma.prompt import render_prompt
from callagent.models.functiongemma.schema import coerce_arguments
from callagent.models.protocol import Message, Tool

_HELD_OUT = 10
"""One utterance in so many is kept for measuring."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    said: str
    """The caller's words: rows with the same ones are on the same side of the split."""
    prompt: str
    """What the model is asked, to the letter."""
    completion: str
    """What it is to say, with the token that ends its answer."""
    source: str
    """Where the row is from, for whoever looks the rows through."""

    def as_json(self) -> dict[str, str]:
        return {"prompt": self.prompt, "completion": self.completion, "source": self.source}


def training_row(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    calls: Sequence[Mapping[str, Any]],
    source: str,
    tokens: TokenSet = FUNCTIONGEMMA,
) -> TrainingRow:
    """The answer to `messages` is `calls`, `{"name", "arguments"}` each; none: the model ends its turn at once.

    Raises `ValueError` for a call that the tools do not allow and for a conversation that cannot be written.
    """
    asked = one_utterance(messages)
    said = next((str(message["content"]) for message in asked if message["role"] == "user"), "")
    parameters = {function["name"]: function.get("parameters") or {} for function in map(function_of, tools)}
    written = []
    for call in calls:
        name, arguments = str(call["name"]), call.get("arguments")
        if name not in parameters:
            raise ValueError(f"there is no function '{name}'")
        if not isinstance(arguments, Mapping):
            raise ValueError(f"the arguments of '{name}' are not known")
        fitted = coerce_arguments(_given(arguments), parameters[name] or {"type": "object"})
        value = format_value(fitted, tokens=tokens, sort=True)
        written.append(f"{tokens.start_call}call:{name}{value}{tokens.end_call}")
    completion = "".join(written) + (tokens.start_response if written else tokens.end_turn)
    return TrainingRow(said, render_prompt(asked, tools, tokens=tokens), completion, source)


def split_rows(rows: Sequence[TrainingRow]) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Rows to train on, and those that are held out: a tenth of the utterances, chosen by their words alone.

    The choice hardly changes when rows are added; of two utterances or more at least one is held out.
    """
    said = sorted({row.said for row in rows}, key=_place)
    held = set(said[: max(round(len(said) / _HELD_OUT), min(1, len(said) - 1))])
    return [row for row in rows if row.said not in held], [row for row in rows if row.said in held]


def _place(said: str) -> float:
    """From 0 to 1, by the words alone."""
    digest = hashlib.sha256(" ".join(said.casefold().split()).encode()).digest()
    return int.from_bytes(digest[:8]) / math.pow(2, 64)


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a model left empty."""
    return {name: value for name, value in arguments.items() if value not in (None, "")}
