"""What the test phone does, step by step.

A script is a YAML list; each entry is one of

    - say: "where is my parcel"       # when the agent has paused
    - play: caller.wav
    - press: "84276#"
    - wait_for: "arrives on"          # until the agent has said something that matches
    - interrupt: "stop please"        # while the agent speaks, `after` seconds into its utterance
      after: 1.0
    - pause: 2.0
    - hang_up: true
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.errors import UserError

_VERBS = ("say", "play", "press", "wait_for", "interrupt", "pause", "hang_up")


@dataclass(frozen=True, slots=True)
class Step:
    verb: str
    value: str
    after: float = 1.0
    """Seconds into the agent's utterance, for `interrupt`."""


def load_script(path: Path) -> list[Step]:
    """Raises `UserError` with file, entry and remedy."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        entries = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(entries, list):
        raise UserError(f"{path}: a script is a list of steps such as `- say: hello`")
    return [_step(path, number, entry) for number, entry in enumerate(entries, 1)]


def _step(path: Path, number: int, entry: Any) -> Step:
    verbs = [verb for verb in _VERBS if isinstance(entry, dict) and verb in entry]
    if len(verbs) != 1:
        raise UserError(f"{path}: step {number} needs one of {', '.join(_VERBS)}")
    verb = verbs[0]
    if unknown := set(entry) - {verb, "after"}:
        raise UserError(f"{path}: step {number} ({verb}): unknown key '{unknown.pop()}'")
    value = str(entry[verb])
    if verb == "play":
        value = str(path.parent / value)
    return checked(Step(verb, value, float(entry.get("after", 1.0))), f"{path}: step {number}")


def checked(step: Step, place: str) -> Step:
    """The step, or `UserError` where its value cannot be."""
    if step.verb == "press" and not re.fullmatch(r"[0-9*#A-D]{1,64}", step.value):
        raise UserError(f"{place}: '{step.value}' are not keys of a telephone (0-9 * # A-D)")
    if step.verb == "wait_for":
        try:
            re.compile(step.value)
        except re.error as error:
            raise UserError(f"{place}: '{step.value}' is not a regular expression: {error}") from None
    if step.verb == "pause":
        try:
            float(step.value)
        except ValueError:
            raise UserError(f"{place}: pause needs seconds, not '{step.value}'") from None
    return step


def steps_from(say: Sequence[str] | None, play: Sequence[Path] | None, digits: str | None) -> list[Step]:
    """The script that `--say`, `--play` and `--dtmf` stand for."""
    steps = [Step("say", text) for text in say or ()] + [Step("play", str(path)) for path in play or ()]
    if digits:
        steps.insert(0, checked(Step("press", digits), "--dtmf"))
    return steps
