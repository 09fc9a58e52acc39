"""What the test phone does, step by step.

A script is a YAML list; each entry is one of

    - say: "where is my parcel"       # when the agent has paused
    - play: caller.wav                # a recording instead
    - mumble: 1.5                     # seconds of speech without words
    - press: "84276#"
    - stay_silent: 20                 # when the agent has paused, until it speaks again, at most so many seconds
    - wait_for: "arrives on"          # until the agent has said something that matches
    - interrupt: "stop please"        # while the agent speaks, `after` seconds into its utterance
      after: 1.0
    - backchannel: "mm-hm"            # likewise, and the agent is to go on
    - noise: -35                      # from here on, dB below full scale; `off` ends it
    - packet_loss: 5                  # from here on, per cent of what we send
    - wait: 2.0
    - hang_up: true
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.errors import UserError

_VERBS = (
    *("say", "play", "mumble", "press", "stay_silent", "wait_for", "interrupt", "backchannel", "noise"),
    *("packet_loss", "wait", "hang_up"),
)
_OVER_THE_AGENT = ("interrupt", "backchannel")
_QUIETEST = -90.0
_LONGEST_PAUSE = 3600


@dataclass(frozen=True, slots=True)
class Step:
    verb: str
    value: str
    after: float = 1.0
    """Seconds into the agent's utterance, for `interrupt` and `backchannel`."""


def load_script(path: Path) -> list[Step]:
    """Raises `UserError` with file, entry and remedy."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        entries = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error}") from None
    except YAMLError as error:
        raise UserError(f"{path}:{_line(error)}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(entries, list):
        raise UserError(f"{path}: a script is a list of steps such as `- say: hello`")
    return [_step(path, number, entry) for number, entry in enumerate(entries, 1)]


def _line(error: Any) -> int:
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else 1


def _step(path: Path, number: int, entry: Any) -> Step:
    verbs = [verb for verb in _VERBS if isinstance(entry, dict) and verb in entry]
    if len(verbs) != 1:
        raise UserError(f"{path}: step {number} needs one of {', '.join(_VERBS)}")
    verb = verbs[0]
    place = f"{path}: step {number} ({verb})"
    known = {verb, "after"} if verb in _OVER_THE_AGENT else {verb}
    if unknown := set(map(str, entry)) - known:
        raise UserError(f"{place}: unknown key '{min(unknown)}'")
    if verb == "noise" and entry[verb] is False:
        entry = {verb: "off"}
    if not isinstance(entry[verb], str | int | float):
        raise UserError(f"{place}: needs a text or a number, not {entry[verb]!r}")
    value = str(entry[verb])
    if verb == "play":
        value = str(path.parent / value)
    return checked(Step(verb, value, _seconds(entry.get("after", 1.0), f"{place}: after")), place)


def checked(step: Step, place: str) -> Step:
    """The step, or `UserError` where its value cannot be."""
    if step.verb == "press" and not re.fullmatch(r"[0-9*#A-D]{1,64}", step.value):
        raise UserError(f"{place}: '{step.value}' are not keys of a telephone (0-9 * # A-D)")
    if step.verb == "wait_for":
        try:
            re.compile(step.value)
        except re.error as error:
            raise UserError(f"{place}: '{step.value}' is not a regular expression: {error}") from None
    match step.verb:
        case "wait" | "mumble" | "stay_silent":
            _seconds(step.value, place)
        case "packet_loss":
            _number(step.value, 0, 100, f"{place} needs per cent")
        case "noise" if step.value != "off":
            _number(step.value, _QUIETEST, 0, f"{place} needs 'off' or decibels below full scale")
    return step


def _seconds(value: Any, place: str) -> float:
    return _number(value, 0, _LONGEST_PAUSE, f"{place} needs seconds")


def _number(value: Any, least: float, most: float, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = least - 1
    if not least <= number <= most:
        raise UserError(f"{what}, {least:g} to {most:g}, not '{value}'")
    return number


def steps_from(say: Sequence[str] | None, play: Sequence[Path] | None, digits: str | None) -> list[Step]:
    """The script that `--say`, `--play` and `--dtmf` stand for."""
    steps = [Step("say", text) for text in say or ()] + [Step("play", str(path)) for path in play or ()]
    if digits:
        steps.insert(0, checked(Step("press", digits), "--dtmf"))
    return steps
