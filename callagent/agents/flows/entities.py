"""`config/entities.yaml`: what default steps collect from the caller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callagent.agents.kernel import Pattern, Reader

_NUMBER = (int, float)
CONFIG_TYPES: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "numeric": {"has_decimal": (bool,), "has_range": (bool,), "min": _NUMBER, "max": _NUMBER},
    "alphanumeric": {"enabled": (bool,), "validation_type": (str,), "regular_expression": (str,)},
    "enum": {"options": (list,)},
    "date": {"relative_date": (bool,)},
    "phone_number": {"enabled": (bool,), "country_codes": (list,)},
    "time": {"enabled": (bool,), "start_time": (str,), "end_time": (str,)},
    "address": {},
    "free_text": {},
    "name_config": {},
}
"""Entity type -> config key -> its types."""


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    description: str
    type: str
    config: Mapping[str, Any]


def load_entities(root: Reader) -> dict[str, Entity]:
    entities: dict[str, Entity] = {}
    for reader in root.maps("entities"):
        name = reader.required_text("name")
        kind = reader.text("entity_type") or "free_text"
        if kind not in CONFIG_TYPES:
            known = ", ".join(sorted(CONFIG_TYPES))
            reader.error(f"Unknown entity_type '{kind}'. Use one of: {known}.", "entity_type")
            kind = "free_text"
        if name in entities:
            reader.error(f"Entity '{name}' is defined twice.", "name")
        entities[name] = Entity(name, reader.text("description"), kind, _config(reader, kind))
    return entities


def _config(reader: Reader, kind: str) -> dict[str, Any]:
    config = {}
    section = reader.map("config")
    for key in section.names():
        name = re.sub(r"([A-Z])", lambda m: "_" + m.group(1).lower(), key)
        value = section.raw(key)
        types = CONFIG_TYPES[kind].get(name)
        if (
            types
            and value is not None
            and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types))
        ):
            wanted = types[-1].__name__
            section.error(
                f"Config field '{name}' should be of type '{wanted}' for entity type '{kind}'.",
                key,
            )
            continue
        if name == "regular_expression" and value:
            try:
                Pattern(str(value))
            except ValueError as error:
                section.error(f"Not a valid regular expression: {error}.", key)
                continue
        config[name] = value
    return config
