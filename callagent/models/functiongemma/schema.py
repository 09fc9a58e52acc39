"""JSON schemas of arguments: their normal form, and the conversion of arguments to the types that they ask for."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at, objects_at

Schema = JsonObject

_MAX_SCHEMA_DEPTH = 50
"""Levels of a schema that are read; deeper ones allow anything. By a reference a schema can contain itself."""
_DEFINITIONS = ("#/$defs/", "#/definitions/")


def normalise(schema: object) -> MutableJsonObject:
    """Return the schema with references resolved, `const` as an `enum` of one value, and `allOf` merged.

    A keyword of the wrong shape is left out, so that the rest of the schema still counts. Never raises.
    """
    return _Normaliser(schema if isinstance(schema, Mapping) else {}).normalise(schema, ())


class _Normaliser:
    """A converter of a schema, and of those inside it, to the normal form."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        """The schema in which references are looked up."""
        self._readers: dict[str, Callable[[JsonValue, tuple[str, ...]], JsonValue]] = {
            "properties": self._properties,
            "items": self._schema,
            "additionalProperties": self._bool_or_schema,
            "anyOf": self._schemas,
            "oneOf": self._schemas,
        }

    def normalise(self, schema: object, inside: tuple[str, ...]) -> MutableJsonObject:
        """Return the normal form. `inside` has an entry per level: the reference being resolved, or an empty text."""
        # An empty schema allows anything: an unreadable one must not keep the function from being called.
        if not isinstance(schema, Mapping) or len(inside) > _MAX_SCHEMA_DEPTH:
            return {}
        if "$ref" in schema:
            return self._resolve(schema, inside)
        normal: MutableJsonObject = {}
        for key, value in schema.items():
            if (reader := self._readers.get(key)) is not None:
                value = reader(value, (*inside, ""))
            elif (fits := _SHAPES.get(key)) is not None and not fits(value):
                value = None
            if value is not None:
                normal[key] = value
        if "const" in schema:
            normal.setdefault("enum", [schema["const"]])
        # The schema's own keywords override those of its parts; properties are combined.
        for part in self._schemas(normal.pop("allOf", None), (*inside, "")) or ():
            properties = {**object_at(part, "properties"), **object_at(normal, "properties")}
            normal = {**part, **normal, **({"properties": properties} if properties else {})}
        return _merge_null(normal)

    def _resolve(self, schema: Schema, inside: tuple[str, ...]) -> MutableJsonObject:
        """Return the schema that a reference names; a reference inside that schema to itself is left out."""
        reference = schema["$ref"]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        # A recursive reference would be resolved without end.
        if not isinstance(reference, str) or reference in inside:
            return self.normalise(rest, (*inside, ""))
        for prefix in _DEFINITIONS:
            definitions = object_at(self._root, prefix[2:-1])
            name = reference.removeprefix(prefix)
            if name != reference and isinstance(definition := definitions.get(name), Mapping):
                return self.normalise({**definition, **rest}, (*inside, reference))
        return self.normalise(rest, (*inside, ""))

    def _properties(self, value: JsonValue, inside: tuple[str, ...]) -> MutableJsonObject | None:
        if not isinstance(value, Mapping):
            return None
        return {name: self.normalise(each, inside) for name, each in value.items() if isinstance(name, str)}

    def _schema(self, value: JsonValue, inside: tuple[str, ...]) -> MutableJsonObject | None:
        return self.normalise(value, inside) if isinstance(value, Mapping) else None

    def _bool_or_schema(self, value: JsonValue, inside: tuple[str, ...]) -> JsonValue:
        return value if isinstance(value, bool) else self._schema(value, inside)

    def _schemas(self, value: JsonValue, inside: tuple[str, ...]) -> list[MutableJsonObject] | None:
        return [self.normalise(each, inside) for each in value] if isinstance(value, list) and value else None


def _merge_null(schema: MutableJsonObject) -> MutableJsonObject:
    """Replace a choice between a schema and null, as pydantic writes it, by the schema with `nullable`."""
    for key in ("anyOf", "oneOf"):
        choices = objects_at(schema, key)
        others = [choice for choice in choices if choice.get("type") != "null"]
        if len(others) == 1 and len(choices) == 2:
            rest = {name: value for name, value in schema.items() if name != key}
            return {**others[0], **rest, "nullable": True}
    return schema


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


_SHAPES: dict[str, Callable[[JsonValue], bool]] = {
    "type": lambda value: isinstance(value, str) or (_is_list_of_texts(value) and bool(value)),
    "required": _is_list_of_texts,
    "enum": lambda value: isinstance(value, list | tuple) and bool(value),
    "nullable": lambda value: isinstance(value, bool),
    "pattern": lambda value: isinstance(value, str),
    **dict.fromkeys(
        (
            *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            *("minLength", "maxLength", "minItems", "maxItems"),
        ),
        _is_number,
    ),
}


_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 1000
"""Characters of a number in a string."""
_MAX_DEPTH = 100
"""Levels of a value that are checked against its schema; deeper ones are refused."""
_MAX_PATTERN_TEXT = 1000
"""Characters of a text that is matched; the time of a pattern may grow faster than the text."""
_MAX_REASON_LENGTH = 200


class _Absence(Enum):
    ABSENT = auto()


_ABSENT: Final = _Absence.ABSENT
"""Marks an absent value, because None is JSON's null."""


class _Misfit(ValueError):
    """A value that does not fit its schema.

    The message is formatted only when it is read, because most errors of a choice of schemas are dropped.
    """

    def __init__(self, reason: str, *about: object) -> None:
        super().__init__(reason, *about)
        self._reason = reason
        self._about = about
        self._path = ""

    def within(self, member: str) -> _Misfit:
        """Put a property or an item in front of the value's path; called for the innermost one first."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{member}{dot}{self._path}"[:_MAX_REASON_LENGTH]
        return self

    def __str__(self) -> str:
        about = (str(each)[:_MAX_REASON_LENGTH] for each in self._about)
        return f"{self._path or 'the call'}{self._reason.format(*about)}"


def coerce_arguments(arguments: JsonObject, schema: Schema) -> MutableJsonObject:
    """Return the arguments with the types of `schema`: an object's schema, or only the map of its properties.

    Null for an optional argument counts as absent; unknown arguments are left out unless the schema allows them. Raises
    `ValueError` with the name of an argument that is missing or does not fit.
    """
    whole = normalise(schema if _is_object_schema(schema) else {"properties": schema})
    # A nested object without declared properties may have any; a function without parameters takes none.
    return _object(arguments, {"additionalProperties": False, **whole}, 0)


def _is_object_schema(schema: Schema) -> bool:
    """Return whether `schema` is an object's; False: it maps names, perhaps `properties`, to schemas."""
    kind, properties = schema.get("type"), schema.get("properties")
    if isinstance(kind, str):
        return True
    return not schema or (
        isinstance(properties, Mapping) and all(isinstance(each, Mapping) for each in properties.values())
    )


def _object(value: JsonValue, schema: Schema, depth: int) -> MutableJsonObject:
    if not isinstance(value, Mapping):
        raise _wrong_value("an object", value)
    required = list_at(schema, "required")
    found: MutableJsonObject = {}
    for name, given in value.items():
        try:
            fitted = _fit_member(name, given, schema, depth)
        except _Misfit as misfit:
            raise misfit.within(str(name)) from None
        if fitted is not _ABSENT:
            found[name] = fitted
    if missing := [str(name) for name in required if name not in found]:
        raise _Misfit(" needs {}", ", ".join(missing))
    return found


def _fit_member(name: str, value: JsonValue, schema: Schema, depth: int) -> JsonValue | _Absence:
    """Return the converted member `name` of an object; `_ABSENT` if the schema does not allow it."""
    properties = object_at(schema, "properties")
    if name in properties:
        required = name in list_at(schema, "required")
        return _fit_property(value, object_at(properties, name), required, depth)
    more = schema.get("additionalProperties", not properties)
    if more is False:
        return _ABSENT
    return _fit(value, more, depth + 1) if isinstance(more, Mapping) else value


def _fit_property(value: JsonValue, schema: Schema, required: bool, depth: int) -> JsonValue | _Absence:
    # Models write null for arguments that the caller has not given.
    if value is None and not _allows_null(schema):
        if required:
            raise _wrong_value("a value", value)
        return _ABSENT
    return _fit(value, schema, depth + 1)


def _fit(value: JsonValue, schema: Schema, depth: int) -> JsonValue:
    if depth > _MAX_DEPTH:
        raise _Misfit(" is too deep")
    if value is None and _allows_null(schema):
        return None
    if choices := objects_at(schema, "anyOf") or objects_at(schema, "oneOf"):
        return _fit_one(value, choices, depth)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _fit_one(value, [{**schema, "type": kind} for kind in kinds], depth)
    if kinds is not None:
        value = _fit_type(value, str(kinds).lower(), schema, depth)
    return _check(value, schema)


def _fit_one(value: JsonValue, choices: Sequence[Schema], depth: int) -> JsonValue:
    """Convert the value by the first choice that leaves it unchanged, else by the first that it fits."""
    first: JsonValue | _Absence = _ABSENT
    error: _Misfit | None = None
    for choice in choices:
        try:
            fitted = _fit(value, choice, depth + 1)
        except _Misfit as misfit:
            error = error or misfit
            continue
        # The types are compared too: in Python 1, 1.0 and True are equal.
        if type(fitted) is type(value) and fitted == value:
            return fitted
        first = fitted if first is _ABSENT else first
    if first is _ABSENT:
        raise error or _Misfit(" fits nothing that is allowed")
    return first


def _fit_type(value: JsonValue, kind: str, schema: Schema, depth: int) -> JsonValue:
    if (scalar := _SCALARS.get(kind)) is not None:
        expected, fit = scalar
        fitted = fit(value)
        if fitted is _ABSENT:
            raise _wrong_value(expected, value)
        return fitted
    if kind == "array":
        # Small models often leave out the brackets around a single item.
        return _array(value if isinstance(value, list) else [value], object_at(schema, "items"), depth)
    return _object(value, schema, depth) if kind == "object" else value


def _array(values: list[JsonValue], items: Schema, depth: int) -> list[JsonValue]:
    if not items:
        return values
    fitted: list[JsonValue] = []
    # Results are cached, because a long list of short values has many equal ones.
    seen: dict[tuple[type, JsonValue], JsonValue] = {}
    try:
        for each in values:
            if isinstance(each, list | dict | float):
                fitted.append(_fit(each, items, depth + 1))
                continue
            key = (each.__class__, each)
            if key not in seen:
                seen[key] = _fit(each, items, depth + 1)
            fitted.append(seen[key])
    except _Misfit as misfit:
        raise misfit.within(f"[{len(fitted)}]") from None
    return fitted


def _string(value: JsonValue) -> JsonValue | _Absence:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else _ABSENT


def _integer(value: JsonValue) -> JsonValue | _Absence:
    number = _number(value)
    # "5.0" and 5.0 mean 5; 5.5 is no integer and is not rounded.
    if isinstance(number, float):
        return int(number) if number.is_integer() else _ABSENT
    return number


def _number(value: JsonValue) -> int | float | _Absence:
    if isinstance(value, str):
        return _parse_number(value.strip())
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _ABSENT


def _parse_number(text: str) -> int | float | _Absence:
    written = _NUMBER.fullmatch(text)
    # The pattern is JSON's, with leading zeros allowed; `float` alone would also accept "nan" and "1_000".
    if written is None or len(text) > _MAX_DIGITS:
        return _ABSENT
    if written[1] is None and written[2] is None:
        return int(text)
    number = float(text)
    return number if abs(number) != float("inf") else _ABSENT


def _boolean(value: JsonValue) -> JsonValue | _Absence:
    if isinstance(value, str):
        truth = {"true": True, "false": False}.get(value.strip().lower())
        return _ABSENT if truth is None else truth
    return value if isinstance(value, bool) else _ABSENT


def _null(value: JsonValue) -> JsonValue | _Absence:
    return None if value is None or value == "null" else _ABSENT


_SCALARS: dict[str, tuple[str, Callable[[JsonValue], JsonValue | _Absence]]] = {
    "string": ("a string", _string),
    "integer": ("an integer", _integer),
    "number": ("a number", _number),
    "boolean": ("true or false", _boolean),
    "null": ("null", _null),
}


def _check(value: JsonValue, schema: Schema) -> JsonValue:
    """Return the value, or its `enum` spelling. Raises `_Misfit` if it is not in the `enum` or beyond a limit."""
    if "enum" in schema:
        enum = list_at(schema, "enum")
        value = _find_in_enum(value, enum)
    # Limits of other types do not apply: `maxLength` is not for numbers.
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_limits(value, schema, "", _NUMBER_LIMITS)
    elif isinstance(value, str):
        _check_limits(len(value), schema, " characters", _TEXT_LIMITS)
        _check_pattern(value, schema)
    elif isinstance(value, list):
        _check_limits(len(value), schema, " items", _LIST_LIMITS)
    return value


_NUMBER_LIMITS = (
    ("minimum", operator.ge, "at least"),
    ("maximum", operator.le, "at most"),
    ("exclusiveMinimum", operator.gt, "more than"),
    ("exclusiveMaximum", operator.lt, "less than"),
)
_TEXT_LIMITS = (("minLength", operator.ge, "at least"), ("maxLength", operator.le, "at most"))
_LIST_LIMITS = (("minItems", operator.ge, "at least"), ("maxItems", operator.le, "at most"))


def _check_limits(
    size: float, schema: Schema, unit: str, limits: Iterable[tuple[str, Callable[..., bool], str]]
) -> None:
    for keyword, allows, words in limits:
        if keyword in schema and not allows(size, schema[keyword]):
            raise _Misfit(": expected {} {}{}, got {}", words, schema[keyword], unit, size)


def _check_pattern(text: str, schema: Schema) -> None:
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return
    try:
        matches = len(text) <= _MAX_PATTERN_TEXT and re.search(pattern, text)
    except re.error:
        # JSON schemas use patterns of ECMAScript; one that Python cannot compile is not checked.
        return
    if not matches:
        raise _wrong_value(f"text of the form {pattern}", text)


def _find_in_enum(value: JsonValue, enum: Sequence[JsonValue]) -> JsonValue:
    """Return the member of `enum` that equals the value, else the only one with the same text, case ignored."""
    for each in enum:
        if type(each) is type(value) and each == value:
            return each
    # If a project has two members that differ in case alone, neither is chosen.
    same_letters = [each for each in enum if str(each).casefold() == str(value).strip().casefold()]
    if len(same_letters) != 1:
        raise _wrong_value(f"one of {', '.join(map(str, enum))}", value)
    return same_letters[0]


def _allows_null(schema: Schema) -> bool:
    kind = schema.get("type")
    kinds = [str(each).lower() for each in (kind if isinstance(kind, list) else [kind])]
    choices = objects_at(schema, "anyOf") or objects_at(schema, "oneOf")
    return schema.get("nullable") is True or "null" in kinds or any(map(_allows_null, choices))


def _wrong_value(expected: str, value: JsonValue) -> _Misfit:
    return _Misfit(": expected {}, got {!r}", expected, value)
