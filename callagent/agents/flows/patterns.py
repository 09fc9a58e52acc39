"""Regular expressions of a project: which can take for ever."""

from __future__ import annotations

import re

_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}")


def repeats_a_repeat(pattern: str) -> bool:
    """Whether a group that ends or consists of open repetitions is itself repeated, as in `(\\w+)*` or `(a*b*)+`.

    Such an expression can take exponential time on a text it does not match. A separator at the end of the group
    (`(\\w+,)*`) makes it harmless.
    """
    pattern = re.sub(r"\\.", "x", pattern)
    pattern = re.sub(r"\[\^?\]?[^\]]*\]", "x", pattern)
    while (group := re.search(r"\((?:\?(?:[:=!]|<[=!]|P<\w+>))?([^()]*)\)([*+]|\{\d*,\d*\})?", pattern)) is not None:
        inside, outside = group.group(1), group.group(2)
        open_ended = bool(outside) and outside != "{0,1}" and not re.fullmatch(r"\{,?1\}", outside)
        if open_ended and any(_ends_open(branch) for branch in inside.split("|")):
            return True
        # What is left of a group: it repeats as its last part does.
        rest = "x" + ("+" if _ends_open(inside) or open_ended else "")
        pattern = pattern[: group.start()] + rest + pattern[group.end() :]
    return False


def _ends_open(branch: str) -> bool:
    """Whether the branch ends with an open repetition, perhaps with optional parts behind it."""
    branch = re.sub(r"(?:.\?)+$", "", branch) if branch.endswith("?") and not branch.endswith(("*?", "+?")) else branch
    return re.search(r"(?:[*+]|\{\d*,\d*\})\??$", branch) is not None and _REPEAT.search(branch) is not None
