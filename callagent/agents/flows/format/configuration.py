"""The documents of `config/` and `real_time_configuration/`.

`config/` holds entities, handoffs, variants, translations, SMS templates, API integrations and MCP servers. Operators
change the real-time configuration while calls run.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from callagent.agents.kernel import Findings, Pattern, Reader
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject
from callagent.log import get_logger

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
"""Entity type -> key of its config -> permitted types."""


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    description: str
    type: str
    config: JsonObject
    """Keys of `CONFIG_TYPES`."""


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
            reader.error(f"Entity '{name}' is defined twice. Rename or remove one of the two.", "name")
        entities[name] = Entity(name, reader.text("description"), kind, _read_config(reader, kind))
    return entities


def _read_config(reader: Reader, kind: str) -> MutableJsonObject:
    config: MutableJsonObject = {}
    section = reader.map("config")
    for key in section.names():
        # Some projects write `hasDecimal` for `has_decimal`.
        name = re.sub(r"([A-Z])", lambda m: "_" + m.group(1).lower(), key)
        value = section.raw(key)
        types = CONFIG_TYPES[kind].get(name)
        if types and value is not None and not _is_one_of(value, types):
            wanted = types[-1].__name__
            section.error(f"Config field '{name}' should be of type '{wanted}' for entity type '{kind}'.", key)
            continue
        if name == "regular_expression" and value:
            try:
                Pattern(str(value))
            except ValueError as error:
                section.error(f"Not a valid regular expression: {error}.", key)
                continue
        # YAML also has dates and sets. No key of an entity takes one.
        config[name] = value if isinstance(value, bool | int | float | str | list | dict) else None
    return config


def _is_one_of(value: object, types: tuple[type, ...]) -> bool:
    # bool is a subclass of int, but `min: true` is no number.
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


HANDOFF_METHODS = ("bye", "invite", "refer")


@dataclass(frozen=True, slots=True)
class HandoffTarget:
    name: str
    description: str = ""
    is_default: bool = False
    method: str = "bye"
    number: str | None = None
    """The number as written in the file: E.164 or a SIP name-addr."""
    headers: tuple[tuple[str, str], ...] = ()
    """Values may hold `$var`."""


def load_handoffs(root: Reader) -> dict[str, HandoffTarget]:
    targets: dict[str, HandoffTarget] = {}
    readers = root.maps("handoffs")
    for reader in readers:
        sip = reader.map("sip_config")
        method = sip.text("method", "bye") or "bye"
        if method not in HANDOFF_METHODS:
            sip.error(f"Unknown handoff method '{method}'. Use invite, refer or bye.", "method")
            method = "bye"
        number = _read_phone_number(sip)
        # The file may leave out numbers: operators state in `callagent.toml` which ones may be called.
        if method != "bye" and not number:
            message = f"A handoff by {method} without 'phone_number' goes to the target of its name in callagent.toml."
            sip.warning(message, "method")
        name = reader.required_text("name")
        headers = tuple((each.text("key"), each.text("value")) for each in reader.maps("sip_headers"))
        targets[name] = HandoffTarget(
            name, reader.text("description"), reader.flag("is_default"), method, number, headers
        )
    defaults = [target.name for target in targets.values() if target.is_default]
    if readers and len(defaults) != 1:
        remedy = "Mark exactly one with is_default: true."
        root.error(f"Multiple or zero default handoffs detected: {defaults}. {remedy}", "handoffs")
    return targets


def _read_phone_number(sip: Reader) -> str | None:
    value = sip.raw("phone_number")
    # YAML reads +4930123 without quotes as a number and drops the plus sign.
    if isinstance(value, int | float):
        sip.error("'phone_number' should be str but got int. Put it in quotes.", "phone_number")
        return None
    return sip.text("phone_number") or None


def find_handoff(targets: Mapping[str, HandoffTarget], destination: str | None) -> HandoffTarget | None:
    """Find a handoff by exact name, then ignoring case; `default` or None is the default handoff."""
    # The exact name first: two handoffs may differ by case only.
    if destination in targets:
        return targets[str(destination)]
    wanted = (destination or "default").lower()
    for target in targets.values():
        if target.name.lower() == wanted:
            return target
    return next((t for t in targets.values() if t.is_default), None) if wanted == "default" else None


@dataclass(frozen=True, slots=True)
class Variants:
    default: str | None = None
    attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Variant -> attribute -> value; every variant is a key."""

    def value(self, variant: str | None, attribute: str) -> object:
        """Return an attribute's value; None: no such variant or attribute, or a typed attribute left blank."""
        return self.attributes.get(variant or "", {}).get(attribute)


def load_variants(root: Reader) -> Variants:
    readers = root.maps("variants")
    names = [reader.required_text("name") for reader in readers]
    defaults = [n for n, reader in zip(names, readers, strict=True) if reader.flag("is_default")]
    if readers and len(defaults) != 1:
        remedy = "Mark one of them with is_default: true."
        root.error(f"Exactly one variant should be the default, found: {defaults}. {remedy}", "variants")
    table: dict[str, dict[str, object]] = {name: {} for name in names}
    for reader in root.maps("attributes"):
        _read_attribute(reader, table)
    default = defaults[0] if defaults else (names[0] if names else None)
    return Variants(default, table)


def _read_attribute(reader: Reader, table: dict[str, dict[str, object]]) -> None:
    name = reader.required_text("name")
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        remedy = "Use letters, digits and _ only: functions read it as conv.variant.<name>."
        reader.error(f"Variant attribute name '{name}' is not a valid Python identifier. {remedy}", "name")
    kind = reader.text("kind", "string") or "string"
    if kind not in ("string", "number", "boolean", "enum", "object"):
        reader.error(f"Unknown kind '{kind}'. Use string, number, boolean, enum or object.", "kind")
    options = reader.map("config").raw("values")
    if kind == "enum" and not options:
        reader.error(f"Variant attribute '{name}' is an enum and needs 'config.values'.", "kind")
    values = reader.map("values")
    missing = [variant for variant in table if variant not in set(values.names())]
    if missing:
        # A warning only: the attribute is unset for those variants.
        remedy = "It is unset for them; give each a value."
        reader.warning(f"Missing variants for variant attribute: {name}: {missing}. {remedy}", "values")
    for variant in values.names():
        if variant in table:
            value = _convert_value(kind, values.raw(variant))
            if value is not None:
                table[variant][name] = value


def _convert_value(kind: str, value: object) -> object:
    # A string that is left blank is an empty text. Attributes of all other kinds are unset where they are left blank.
    if kind in ("string", "enum"):
        return None if value is None and kind == "enum" else _as_text(value)
    if value is None or value == "":
        return None
    if kind == "number" and isinstance(value, str):
        return _as_number(value)
    if kind == "boolean" and isinstance(value, str):
        return value.lower() == "true"
    return value


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _as_number(value: str) -> float | int | None:
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        return None


Translations = Mapping[str, Mapping[str, str]]
"""Key -> language -> text."""


def load_translations(root: Reader, languages: Sequence[str]) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for reader in root.maps("translations"):
        name = reader.required_text("name")
        texts = reader.map("translations")
        table[name] = {language: str(texts.raw(language) or "") for language in texts.names()}
        missing = [language for language in languages if language not in table[name]]
        extra = [language for language in table[name] if language not in languages]
        if missing:
            reader.error(f"Translation '{name}' lacks the languages {missing}. Add a text for each.", "translations")
        if extra:
            remedy = "Add them there, or remove the texts."
            message = f"Translation '{name}' has languages that languages.yaml does not: {extra}. {remedy}"
            reader.error(message, "translations")
    return table


def translate(table: Translations, key: str, language: str | None) -> str | None:
    """Return the text in `language`, else in the same language of another region, else None."""
    texts = table.get(key, {})
    if not language or language in texts:
        return texts.get(language or "")
    # The text of `de-DE` is better than none for `de-AT`.
    short = language.split("-")[0]
    return next((text for code, text in texts.items() if code.split("-")[0] == short), None)


@dataclass(frozen=True, slots=True)
class SmsTemplate:
    name: str
    text: str
    senders: Mapping[str, str]
    """Environment (`sandbox`, `pre-release`, `live`) -> number; empty: none."""


def load_sms_templates(root: Reader) -> dict[str, SmsTemplate]:
    templates = {}
    for reader in root.maps("sms_templates"):
        name = reader.required_text("name")
        # An empty number means the provider's default sender.
        if "env_phone_numbers" not in reader:
            reader.error("'env_phone_numbers' is required; its values may be empty.", "name")
        numbers = reader.map("env_phone_numbers")
        senders = {env: str(numbers.raw(env.replace("-", "_")) or "") for env in ("sandbox", "pre-release", "live")}
        templates[name] = SmsTemplate(name, reader.required_text("text"), senders)
    return templates


AUTH_TYPES = ("none", "basic", "apiKey", "oauth2", "oauth2_client_credentials", "jwt_client_assertion")
HTTP_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    resource: str
    """Path with `{variables}`, optionally with a query."""


@dataclass(frozen=True, slots=True)
class ApiIntegration:
    name: str
    environments: Mapping[str, tuple[str, str]]
    """Environment (`sandbox`, `pre-release`, `live`) -> base URL and kind of authentication."""
    operations: Mapping[str, Operation]

    def plain(self, environment: str) -> MutableJsonObject:
        """Return the part that a worker needs, as plain data."""
        base_url, auth_type = self.environments.get(environment, ("", "none"))
        operations = {name: {"method": one.method, "resource": one.resource} for name, one in self.operations.items()}
        return {"base_url": base_url, "auth_type": auth_type, "operations": operations}


def load_apis(root: Reader) -> dict[str, ApiIntegration]:
    found = {}
    for reader in root.maps("api_integrations"):
        name = reader.required_text("name")
        if name and not _NAME.fullmatch(name):
            reader.error(f"API integration name '{name}' should match [a-z_][a-z0-9_]*.", "name")
        sections = reader.map("environments")
        environments = {}
        for environment in sections.names():
            section = sections.map(environment)
            auth_type = _read_choice(section, "auth_type", AUTH_TYPES, "none")
            # YAML keys have underscores where the names of environments have hyphens.
            environments[environment.replace("_", "-")] = (section.text("base_url").rstrip("/"), auth_type)
        found[name] = ApiIntegration(name, environments, _read_operations(reader))
    return found


def _read_operations(reader: Reader) -> dict[str, Operation]:
    return {
        each.required_text("name"): Operation(
            _read_choice(each, "method", HTTP_METHODS, "GET"), each.required_text("resource").lstrip("/")
        )
        for each in reader.maps("operations")
    }


def _read_choice(reader: Reader, key: str, allowed: tuple[str, ...], default: str) -> str:
    value = reader.text(key) or default
    if value not in allowed:
        reader.error(f"'{key}' should be one of {', '.join(allowed)}, not '{value}'.", key)
    return value


MCP_FILE = "config/mcp.yaml"
DEFAULT_MCP_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class McpConfig:
    """A server of the Model Context Protocol (MCP)."""

    provider: str
    url: str
    auth: JsonObject
    """`header`, `query_param` or `oauth`; empty: none."""
    timeout: float
    """Seconds for one request."""
    enabled: tuple[str, ...] | None
    """Functions that are offered; None: all."""

    def plain(self) -> MutableJsonObject:
        """Return the part that a worker needs, as plain data."""
        enabled = None if self.enabled is None else list(self.enabled)
        return {"url": self.url, "auth": dict(self.auth), "timeout": self.timeout, "enabled": enabled}


def load_mcp(root: Reader) -> tuple[McpConfig, ...]:
    found = []
    for server in root.maps("mcp_servers"):
        auth = server.raw("auth")
        found.append(
            McpConfig(
                provider=str(server.raw("provider_id") or ""),
                url=server.text("url"),
                auth=auth if isinstance(auth, dict) else {},
                timeout=server.number("timeout") or DEFAULT_MCP_TIMEOUT,
                enabled=server.texts("enabled_functions") if "enabled_functions" in server else None,
            )
        )
    return tuple(found)


def check_mcp(root: Reader) -> None:
    seen: set[str] = set()
    for server in root.maps("mcp_servers"):
        name = server.required_text("provider_id")
        if name in seen:
            server.error(
                f"provider_id '{name}' is used twice. Give each server an identifier of its own.", "provider_id"
            )
        seen.add(name)
        if not server.text("url").startswith(("http://", "https://")):
            server.error(f"'url' should be an http(s) address, not '{server.text('url')}'.", "url")
        # If there were two, the first would be used and the other one ignored.
        kinds = [kind for kind in ("header", "query_param", "oauth") if kind in server.map("auth")]
        if "auth" in server and len(kinds) != 1:
            server.error("'auth' should hold exactly one of header, query_param and oauth.", "auth")
        timeout = server.number("timeout")
        if timeout is not None and not 1 <= timeout <= 30:
            server.error("'timeout' should be between 1 and 30 seconds.", "timeout")
        server.texts("enabled_functions")


log = get_logger(__name__)
_FOLDERS = {"live": "live", "pre-release": "pre_release"}
"""Environment -> its folder; all others share `draft_and_sandbox`."""


def check_real_time(project: Path, findings: Findings) -> None:
    """Check each environment's data against its schema (JSON Schema, draft 7)."""
    for folder in ("draft_and_sandbox", "pre_release", "live"):
        place = f"real_time_configuration/{folder}"
        schema, data = (_read_json(project, f"{place}/{name}.json", findings) for name in ("schema", "data"))
        if data is not None and not isinstance(data, Mapping):
            findings.error(f"{place}/data.json", 1, "The file should hold one JSON object.")
        elif schema is not None and not isinstance(schema, Mapping | bool):
            findings.error(f"{place}/schema.json", 1, "Not a valid JSON schema: it should be one JSON object.")
        elif schema is not None and data is not None:
            _validate(schema, data, place, findings)


def _read_json(project: Path, file: str, findings: Findings) -> JsonValue:
    """Return the value of a JSON file; None if there is no such file. An unreadable file is an error, and None too."""
    try:
        value: JsonValue = json.loads((project / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        findings.error(file, error.lineno, f"Not valid JSON: {error.msg}.")
    except (OSError, UnicodeDecodeError) as error:
        findings.error(file, 1, f"The file cannot be read: {error}. Save it as UTF-8.")
    else:
        return value
    return None


def _validate(schema: JsonObject | bool, data: JsonObject, place: str, findings: Findings) -> None:
    from jsonschema import Draft7Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft7Validator.check_schema(schema)
    except SchemaError as error:
        findings.error(f"{place}/schema.json", 1, f"Not a valid JSON schema: {error.message}.")
        return
    for problem in Draft7Validator(schema).iter_errors(data):
        where = ".".join(str(part) for part in problem.absolute_path) or "the object"
        findings.error(f"{place}/data.json", 1, f"{where}: {problem.message}.")


class RealTimeConfiguration:
    """The data of each environment, read again when its file changes."""

    def __init__(self, project: Path) -> None:
        self._folder = project / "real_time_configuration"
        self._cache: dict[str, tuple[float, JsonObject]] = {}
        """Environment -> modification time of its file, and its data."""

    def folder(self, environment: str) -> Path:
        """Return the folder that holds `schema.json` and `data.json` of an environment."""
        return self._folder / _FOLDERS.get(environment, "draft_and_sandbox")

    def read_data(self, environment: str) -> JsonObject:
        """Return the data of an environment; an empty map where the project has none.

        While the file cannot be read, for example because it is half written, the data read before are returned.
        """
        path = self.folder(environment) / "data.json"
        cached = self._cache.get(environment)
        try:
            modified = path.stat().st_mtime
            # This runs before each function of a call, so the file is opened only when its modification time differs.
            if cached is None or cached[0] != modified:
                data = json.loads(path.read_text(encoding="utf-8"))
                cached = (modified, data if isinstance(data, dict) else {})
                self._cache[environment] = cached
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("real_time_configuration_unreadable", file=str(path), error=str(error))
        return cached[1] if cached else {}
