"""`config/variant_attributes.yaml`: texts that differ between sites or brands."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.kernel import Reader


@dataclass(frozen=True, slots=True)
class Variants:
    default: str | None = None
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Variant -> attribute -> value; every variant is a key."""

    def value(self, variant: str | None, attribute: str) -> Any:
        """None: no such variant or attribute, or a typed attribute left blank."""
        return self.attributes.get(variant or "", {}).get(attribute)


def load_variants(root: Reader) -> Variants:
    readers = root.maps("variants")
    names = [reader.required_text("name") for reader in readers]
    defaults = [n for n, reader in zip(names, readers, strict=True) if reader.flag("is_default")]
    if readers and len(defaults) != 1:
        root.error(f"Exactly one variant should be the default, found: {defaults}", "variants")
    table: dict[str, dict[str, Any]] = {name: {} for name in names}
    for reader in root.maps("attributes"):
        _read_attribute(reader, table)
    default = defaults[0] if defaults else (names[0] if names else None)
    return Variants(default, table)


def _read_attribute(reader: Reader, table: dict[str, dict[str, Any]]) -> None:
    name = reader.required_text("name")
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        reader.error(f"Variant attribute name '{name}' is not a valid Python identifier.", "name")
    kind = reader.text("kind", "string") or "string"
    if kind not in ("string", "number", "boolean", "enum", "object"):
        reader.error(f"Unknown kind '{kind}'. Use string, number, boolean, enum or object.", "kind")
    options = reader.map("config").raw("values")
    if kind == "enum" and not options:
        reader.error(f"Variant attribute '{name}' is an enum and needs 'config.values'.", "kind")
    values = reader.map("values")
    missing = [variant for variant in table if variant not in set(values.names())]
    if missing:
        # Reported, not refused: the attribute is simply unset for those variants.
        reader.warning(f"Missing variants for variant attribute: {name}: {missing}", "values")
    for variant in values.names():
        if variant in table:
            value = _typed(kind, values.raw(variant))
            if value is not None:
                table[variant][name] = value


def _typed(kind: str, value: Any) -> Any:
    if kind in ("string", "enum"):
        return None if value is None and kind == "enum" else _text(value)
    if value is None or value == "":
        return None
    if kind == "number" and isinstance(value, str):
        return _number(value)
    if kind == "boolean" and isinstance(value, str):
        return value.lower() == "true"
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _number(value: str) -> float | int | None:
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        return None
