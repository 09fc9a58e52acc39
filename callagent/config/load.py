"""Reads the settings: file, environment, secrets; and explains what is wrong with them."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from callagent.config.secrets import secret_values
from callagent.config.sections import (
    Config,
    ModelFallback,
    Number,
    Target,
    Trunk,
    User,
    VoiceLike,
    Webhook,
)
from callagent.errors import ConfigError
from callagent.log import remember_secrets
from callagent.models import declarations as model_providers
from callagent.speech.providers import declarations as speech_providers

_SHAPES = {"tuple_type": "should be a list", "model_type": "should be a table", "dict_type": "should be a table"}
_SECRETS = {
    "TWILIO_ACCOUNT_SID": ("twilio", "account_sid"),
    "TWILIO_AUTH_TOKEN": ("twilio", "auth_token"),
    "CALLAGENT_METRICS_TOKEN": ("http", "metrics_token"),
    "TELNYX_API_KEY": ("messages", "telnyx_api_key"),
    "CALLAGENT_DATABASE_URL": ("records", "database"),
    "SMTP_PASSWORD": ("messages", "smtp_password"),
}


def load_config(path: Path | None, environment: Mapping[str, str] | None = None) -> Config:
    """Settings of the file at `path` (none: the defaults) and of the environment.

    Raises `ConfigError` naming file, line and key.
    """
    variables = dict(os.environ if environment is None else environment)
    text = _read(path) if path else ""
    data = _parse(path, text)
    if path:
        variables = {**_dotenv(path.parent / ".env"), **variables}
    _apply_secrets(data, variables)
    overridden = _apply_overrides(data, variables)
    try:
        config = Config.model_validate(data).from_file(str(path.resolve()) if path else "")
    except ValidationError as error:
        raise ConfigError(_explain(error, path, text, overridden)) from None
    remember_secrets(secret_values(config))
    return config


def find_config(project: Path) -> Path | None:
    """The callagent.toml of the current folder, else of the project."""
    for folder in (Path.cwd(), project):
        if (folder / "callagent.toml").is_file():
            return folder / "callagent.toml"
    return None


def function_environment(config: Config) -> dict[str, str]:
    """What project functions see of the environment: the variables that the settings name."""
    return {name: os.environ[name] for name in config.function_environment if name in os.environ}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from None


def _parse(path: Path | None, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {
        key.strip().removeprefix("export "): value.strip().strip("'\"")
        for key, _, value in pairs
        if not key.startswith("#")
    }


def _apply_secrets(data: dict[str, Any], variables: Mapping[str, str]) -> None:
    for name, (section, key) in _SECRETS.items():
        if value := _secret(variables, name):
            data.setdefault(section, {})[key] = value
    for one in speech_providers().values():
        if one.key and (value := _secret(variables, one.key)):
            _provider(data, "speech", one.section)["api_key"] = value
        for name, (setting, form) in one.environment.items():
            if value := variables.get(name):
                _provider(data, "speech", one.section).setdefault(setting, form.format(value))
    for provider in model_providers().values():
        # The first key that is set counts, so it is applied last.
        for name, setting in [*((key, "api_key") for key in reversed(provider.keys)), *provider.environment.items()]:
            if value := _secret(variables, name):
                _provider(data, "model", provider.name)[setting] = value
    trunks = data.get("sip", {}).get("trunks", []) if isinstance(data.get("sip"), dict) else []
    for trunk in (one for one in trunks if isinstance(one, dict)):
        for key in ("password", "inbound_password"):
            # SIP_CARRIER_PASSWORD is the password of the trunk named carrier.
            if value := _secret(variables, re.sub(r"\W", "_", f"SIP_{trunk.get('name', '')}_{key}").upper()):
                trunk[key] = value


def _provider(data: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    """The table `SECTION.providers.NAME`; where the file has something else there, one that nobody reads."""
    place: Any = data
    for part in (section, "providers", name):
        place = place.setdefault(part, {}) if isinstance(place, dict) else {}
    return place if isinstance(place, dict) else {}


def _secret(variables: Mapping[str, str], name: str) -> str | None:
    file = variables.get(f"{name}_FILE")
    return _read(Path(file)).strip() if file else variables.get(name)


def _apply_overrides(data: dict[str, Any], variables: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Put CALLAGENT_SECTION__KEY into `data`; where each came from, for messages."""
    origin: dict[tuple[str, ...], str] = {}
    for name, value in variables.items():
        if not name.startswith("CALLAGENT_") or "__" not in name:
            continue
        path = tuple(name.removeprefix("CALLAGENT_").lower().split("__"))
        place: Any = data
        for part in path[:-1]:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ConfigError(f"environment variable {name}: '{'.'.join(path[:-1])}' is no table; set it in the file")
        place[path[-1]] = value
        origin[path] = name
    return origin


def _explain(error: ValidationError, path: Path | None, text: str, overridden: Mapping[tuple[str, ...], str]) -> str:
    lines = []
    for detail in error.errors():
        keys = tuple(str(part) for part in detail["loc"])
        variable = next((name for one, name in overridden.items() if one[: len(keys)] == keys[: len(one)]), None)
        if variable:
            place = f"environment variable {variable}"
        else:
            place = f"{path}:{_line_of(text, keys)}" if path else "command line"
        lines.append(f"{place}: {_complaint(detail['type'], detail['msg'], keys)}")
    return "\n".join(lines)


def _complaint(kind: str, message: str, keys: tuple[str, ...]) -> str:
    if not keys:
        return message.removeprefix("Value error, ")
    setting = ".".join(keys)
    if kind != "extra_forbidden":
        return f"setting '{setting}': {_SHAPES.get(kind) or message.removeprefix('Value error, ')}"
    names = _known_names(keys[:-1])
    close = difflib.get_close_matches(keys[-1], names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(sorted(names))}"
    return f"unknown setting '{setting}'; {hint}"


def _known_names(keys: tuple[str, ...]) -> list[str]:
    model: Any = Config
    tables = {"trunks": Trunk, "numbers": Number, "targets": Target, "users": User, "webhooks": Webhook}
    lists: dict[str, Any] = {"voices": VoiceLike, "fallbacks": ModelFallback}
    for key in keys:
        if not key.isdigit():
            model = tables.get(key) or lists.get(key) or model.model_fields[key].annotation
    return list(model.model_fields)


def _line_of(text: str, keys: tuple[str, ...]) -> int:
    """The line of the setting, as near as text search finds it."""
    names = [key for key in keys if not key.isdigit()]
    if not names:
        return 1
    start = 0
    if len(names) > 1 and (table := re.search(rf"^\s*\[+{re.escape('.'.join(names[:-1]))}\]", text, re.M)):
        start = table.start()
    wanted = re.compile(rf"^\s*(?:\[+)?(?:[\w.]*\.)?{re.escape(names[-1])}\b", re.M)
    found = wanted.search(text, start) or wanted.search(text)
    return text.count("\n", 0, found.start() + 1 if found else start) + 1


def override(config: Config, changes: Mapping[str, object]) -> Config:
    """`config` with some settings replaced (`{"sip.listen": "127.0.0.1:0"}`). Raises `ConfigError`."""
    data = config.model_dump()
    for setting, value in changes.items():
        section, _, key = setting.rpartition(".")
        data[section][key] = value
    try:
        return Config.model_validate(data).from_file(config.file)
    except ValidationError as error:
        raise ConfigError(_explain(error, None, "", {})) from None
