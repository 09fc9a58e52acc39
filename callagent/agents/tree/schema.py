"""What a model returned, measured against a JSON schema: as much as agents rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from callagent.agents.tree.failure import RunFailed


def parse_output(text: str, schema: Mapping[str, Any] | None) -> Any:
    """A text as it is; with a schema the JSON in it. Raises `RunFailed`."""
    if schema is None:
        return text
    stripped = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = json.loads(stripped)
    except json.JSONDecodeError as error:
        raise RunFailed("ValidationError", f"the model's answer is not JSON: {error}") from None
    missing = missing_keys(value, schema)
    if missing:
        raise RunFailed("ValidationError", f"the model's answer lacks {', '.join(missing)}")
    return value


def missing_keys(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """The required keys that an object does not have."""
    required = [str(key) for key in schema.get("required") or ()]
    return required if not isinstance(value, dict) else [key for key in required if key not in value]
