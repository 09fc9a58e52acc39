"""Regular expressions of a project. They are searched on the event loop, so each search is bounded in time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import TypeVar

import regex

from callagent.log import get_logger

log = get_logger(__name__)
SEARCH_SECONDS = 0.02
"""Deadline of one search. A search blocks the event loop, but not the thread that paces RTP."""
MAX_TIMEOUTS = 3
"""Searches that may pass the deadline before an expression is no longer tried."""
Found = TypeVar("Found")
_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}")


class Pattern:
    """A compiled expression. Searches past their deadline find nothing; after `MAX_TIMEOUTS` of them, none is made."""

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        """Compile `text`. Raises ValueError where it is not an expression of Python's `re`."""
        flags = regex.IGNORECASE if ignore_case else 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Python's own rules decide what is valid. Searches use `regex`, which has deadlines but accepts more.
                re.compile(text)
                self._compiled = regex.compile(text, flags)
        except (re.error, regex.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None
        self.pattern = text
        self._timeouts = 0

    def search(self, text: str, start: int = 0) -> regex.Match[str] | None:
        """Return the first match at or after `start`; None where there is none or the deadline has passed."""
        return self._bounded(lambda: self._compiled.search(text, start, timeout=SEARCH_SECONDS), None)

    def fullmatch(self, text: str) -> regex.Match[str] | None:
        """Return the match of the whole text; None where it does not match or the deadline has passed."""
        return self._bounded(lambda: self._compiled.fullmatch(text, timeout=SEARCH_SECONDS), None)

    def substitute(self, replacement: str, text: str) -> str:
        """Replace every match; `\\1` and `$1` are groups. Past the deadline, return the text unchanged."""
        return self._bounded(
            lambda: self._compiled.sub(lambda match: expand_groups(match, replacement), text, timeout=SEARCH_SECONDS),
            text,
        )

    def _bounded(self, run: Callable[[], Found], otherwise: Found) -> Found:
        if self._timeouts >= MAX_TIMEOUTS:
            return otherwise
        try:
            return run()
        except TimeoutError:
            self._timeouts += 1
            consequence = "it is not tried any more" if self._timeouts >= MAX_TIMEOUTS else "it found nothing this time"
            log.error("expression_too_slow", expression=self.pattern, consequence=consequence)
            return otherwise


def expand_groups(match: regex.Match[str], replacement: str) -> str:
    """Return `replacement` with `\\1` or `$1` replaced by the match's groups; everything else is literal."""

    def group(reference: re.Match[str]) -> str:
        number = int(reference.group(1))
        return (match.group(number) or "") if number <= match.re.groups else reference.group(0)

    return re.sub(r"[\\$](\d)", group, replacement)


def has_nested_repeats(pattern: str) -> bool:
    """Return whether a group of open repetitions is itself repeated, as in `(\\w+)*` or `(a*b*)+`.

    Such an expression can take exponential time on a text it does not match. A separator at the end of the group
    (`(\\w+,)*`) makes it harmless.
    """
    # Escapes and character classes become one character each. Then the innermost group is replaced by `x`, or by `x+`
    # if it repeats, until no group is left.
    pattern = re.sub(r"\\.", "x", pattern)
    pattern = re.sub(r"\[\^?\]?[^\]]*\]", "x", pattern)
    while (group := re.search(r"\((?:\?(?:[:=!]|<[=!]|P<\w+>))?([^()]*)\)([*+]|\{\d*,\d*\})?", pattern)) is not None:
        inside, outside = group.group(1), group.group(2)
        open_ended = bool(outside) and outside != "{0,1}" and not re.fullmatch(r"\{,?1\}", outside)
        if open_ended and any(_ends_open(branch) for branch in inside.split("|")):
            return True
        # Seen from the group around it, a group repeats as its last part does.
        rest = "x" + ("+" if _ends_open(inside) or open_ended else "")
        pattern = pattern[: group.start()] + rest + pattern[group.end() :]
    return False


def _ends_open(branch: str) -> bool:
    """Return whether the branch ends with an open repetition, perhaps with optional parts behind it."""
    branch = re.sub(r"(?:.\?)+$", "", branch) if branch.endswith("?") and not branch.endswith(("*?", "+?")) else branch
    return re.search(r"(?:[*+]|\{\d*,\d*\})\??$", branch) is not None and _REPEAT.search(branch) is not None
