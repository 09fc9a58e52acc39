"""What becomes of a state that several pieces of code change side by side, each from the same beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Change = tuple[Mapping[str, Any], Sequence[str]]
"""Keys set and keys removed."""
_NOTHING = object()


def merge_changes(before: Mapping[str, Any], changes: Sequence[Change]) -> list[Change]:
    """The same changes in agreement with each other: who applies them, in any order, has everybody's.

    `changes` are in the order in which the code ended: of two that changed the same, at whatever depth of objects, the
    last one holds.
    """
    after: Any = before
    for changed, removed in changes:
        own = {key: value for key, value in {**before, **changed}.items() if key not in removed}
        after = _merged(before, after, own)
    return [_agreed(after, [*changed, *removed]) for changed, removed in changes]


def _agreed(after: Mapping[str, Any], keys: Sequence[str]) -> Change:
    return {key: after[key] for key in keys if key in after}, [key for key in keys if key not in after]


def _merged(before: Any, first: Any, second: Any) -> Any:
    """`first`, with what `second` changed of what was `before`."""
    if not all(isinstance(each, Mapping) for each in (before, first, second)):
        return second
    merged = {}
    for key in {**first, **second}:
        old, one, other = (each.get(key, _NOTHING) for each in (before, first, second))
        value = one if _same(other, old) else other if _same(one, old) else _merged(old, one, other)
        if value is not _NOTHING:
            merged[key] = value
    return merged


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)
