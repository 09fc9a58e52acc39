"""`conv.utils.extract_address` and `extract_city`: the language model reads what the caller said last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from callagent.agents.flows.runtime.failures import ChatCompletionError, ExtractionError
from callagent.agents.flows.runtime.messages import Address

_HINTS = 200
"""Addresses, cities or states that the model is shown."""


def extract(ask: Callable[..., Any], what: str, hints: Mapping[str, Sequence[str]], country: str) -> Address:
    """Raises `ExtractionError` when nothing was said or the model cannot be asked."""
    keys = [field.name for field in fields(Address)]
    prompt = (
        f"Extract {what} from what the user said last. The country is {country} unless something else was said. "
        f"Answer with one JSON object with the keys {', '.join(keys)}; null for what was not said."
    )
    for name, values in hints.items():
        if values:
            prompt += f"\nIt is {name}, perhaps misheard: {'; '.join(list(values)[:_HINTS])}"
    try:
        found = ask(prompt, show_history=True, return_json=True)
    except ChatCompletionError as error:
        raise ExtractionError(f"the model could not be asked: {error}") from None
    given = {key: str(found[key]) for key in keys if isinstance(found, dict) and found.get(key)}
    if not set(given) - {"country"}:
        raise ExtractionError(f"{what} was not found in what the caller said")
    return Address(**{"country": country, **given})
