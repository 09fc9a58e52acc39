"""Read the settings from file, environment and secrets, and explain what is wrong with them."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from pydantic import BaseModel, ValidationError

from callagent.config import sections
from callagent.config.secrets import secret_values
from callagent.errors import ConfigError
from callagent.log import remember_secrets
from callagent.models import declarations as model_providers
from callagent.speech.providers import declarations as speech_providers

Table: TypeAlias = dict[str, object]
"""A table of the file, whose values have not been checked."""

# Messages in terms of TOML, which the settings are written in; Pydantic's own name types of Python.
_TOML_MESSAGES: Final = {
    "tuple_type": "should be a list",
    "model_type": "should be a table",
    "dict_type": "should be a table",
}
# The section and the key that each variable sets.
_SECRET_VARIABLES: Final = {
    "TWILIO_ACCOUNT_SID": ("twilio", "account_sid"),
    "TWILIO_AUTH_TOKEN": ("twilio", "auth_token"),
    "CALLAGENT_METRICS_TOKEN": ("http", "metrics_token"),
    "TELNYX_API_KEY": ("messages", "telnyx_api_key"),
    "CALLAGENT_DATABASE_URL": ("records", "database"),
    "SMTP_PASSWORD": ("messages", "smtp_password"),
}


def load_config(path: Path | None, environment: Mapping[str, str] | None = None) -> sections.Config:
    """Return the settings of the file at `path` (None: the defaults) and of the environment.

    The environment wins over `.env` beside the file, and both win over the file. Raises `ConfigError` naming file, line
    and key.
    """
    variables = dict(os.environ if environment is None else environment)
    text = _read_text(path, str(path)) if path else ""
    data = _parse(path, text)
    if path:
        variables = {**_dotenv(path.parent / ".env"), **variables}
    _apply_secrets(data, variables)
    overridden = _apply_overrides(data, variables)
    try:
        config = sections.Config.model_validate(data).with_file(str(path.resolve()) if path else "")
    except ValidationError as error:
        raise ConfigError(_explain(error, path, text, overridden)) from None
    # From here on the values of secrets are taken out of log lines, errors and records.
    remember_secrets(secret_values(config))
    return config


def find_config(project: Path) -> Path | None:
    """Return the callagent.toml of the current folder, or else of the project; None: there is none."""
    for folder in (Path.cwd(), project):
        if (folder / "callagent.toml").is_file():
            return folder / "callagent.toml"
    return None


def function_environment(config: sections.Config) -> dict[str, str]:
    """Return the environment variables that project functions may read: those that the settings name."""
    return {name: os.environ[name] for name in config.function_environment if name in os.environ}


def _read_text(path: Path, name: str) -> str:
    """Return the text of a file. Raises `ConfigError`, whose message calls the file `name`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot be read: {error.strerror}; it must exist, and this user must be able to read it"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8: {error}; save it as UTF-8") from None


def _parse(path: Path | None, text: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a `.env` file; none where there is no such file."""
    if not path.is_file():
        return {}
    # The format is that of shells and Docker: `NAME=value`, perhaps with `export` and quotes; # begins a comment line.
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {
        key.strip().removeprefix("export "): value.strip().strip("'\"")
        for key, _, value in pairs
        if not key.startswith("#")
    }


def _apply_secrets(data: Table, variables: Mapping[str, str]) -> None:
    """Set in `data` what environment variables with well-known names hold, such as `OPENAI_API_KEY`."""
    for name, (section, key) in _SECRET_VARIABLES.items():
        if value := _secret(variables, name):
            _table(data, section)[key] = value
    for speech in speech_providers().values():
        if speech.key and (value := _secret(variables, speech.key)):
            _table(data, "speech", "providers", speech.section)["api_key"] = value
        for name, (setting, form) in speech.environment.items():
            if value := variables.get(name):
                _table(data, "speech", "providers", speech.section).setdefault(setting, form.format(value))
    for model in model_providers().values():
        # The first key that is set counts, so it is applied last.
        for name, setting in [*((key, "api_key") for key in reversed(model.keys)), *model.environment.items()]:
            if value := _secret(variables, name):
                _table(data, "model", "providers", model.name)[setting] = value
    for trunk in _trunks(data):
        for key in ("password", "inbound_password"):
            # SIP_CARRIER_PASSWORD is the password of the trunk named carrier.
            if value := _secret(variables, re.sub(r"\W", "_", f"SIP_{trunk.get('name', '')}_{key}").upper()):
                trunk[key] = value


def _trunks(data: Table) -> list[Table]:
    """Return the tables of `[[sip.trunks]]`."""
    sip = data.get("sip")
    trunks = sip.get("trunks") if isinstance(sip, dict) else None
    return [one for one in trunks if isinstance(one, dict)] if isinstance(trunks, list) else []


def _table(data: Table, *path: str) -> Table:
    """Return the table at `path` in `data`; make it if it is missing.

    If the file has a value there that is no table, return a table that nobody reads: the mistake is reported, with its
    line, when the settings are checked.
    """
    table = data
    for part in path:
        inner = table.setdefault(part, {})
        table = inner if isinstance(inner, dict) else {}
    return table


def _secret(variables: Mapping[str, str], name: str) -> str | None:
    """Return a variable, or the content of the file that the variable `<NAME>_FILE` names."""
    file = variables.get(f"{name}_FILE")
    if file:
        return _read_text(Path(file), f"{file} (environment variable {name}_FILE)").strip()
    return variables.get(name)


def _apply_overrides(data: Table, variables: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Set in `data` the values of variables such as `CALLAGENT_SECTION__KEY`. Return the variable of each setting."""
    origin: dict[tuple[str, ...], str] = {}
    for name, value in variables.items():
        # Two underscores, because settings have single ones in their names.
        if not name.startswith("CALLAGENT_") or "__" not in name:
            continue
        path = tuple(name.removeprefix("CALLAGENT_").lower().split("__"))
        table = data
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"environment variable {name}: '{'.'.join(path[:-1])}' is not a table; set it in the file"
                )
            table = inner
        table[path[-1]] = value
        origin[path] = name
    return origin


def _explain(error: ValidationError, path: Path | None, text: str, overridden: Mapping[tuple[str, ...], str]) -> str:
    """Return a line for each mistake: where it is, which setting, what is wrong with it."""
    lines = []
    for detail in error.errors():
        keys = tuple(str(part) for part in detail["loc"])
        # The mistake may lie inside the value that the variable set, or be the table that contains this value.
        variable = next(
            (name for setting, name in overridden.items() if setting[: len(keys)] == keys[: len(setting)]), None
        )
        if variable:
            place = f"environment variable {variable}"
        else:
            place = f"{path}:{_line_of(text, keys)}" if path else "command line"
        lines.append(f"{place}: {_describe_mistake(detail['type'], detail['msg'], keys)}")
    return "\n".join(lines)


def _describe_mistake(kind: str, message: str, keys: tuple[str, ...]) -> str:
    """Return what is wrong with the setting at `keys`; `kind` and `message` are Pydantic's."""
    if not keys:
        return message.removeprefix("Value error, ")
    setting = ".".join(keys)
    if kind != "extra_forbidden":
        return f"setting '{setting}': {_TOML_MESSAGES.get(kind) or message.removeprefix('Value error, ')}"
    # Most unknown settings are misspelt ones, or stand in the wrong section.
    names = _known_names(keys[:-1])
    close = difflib.get_close_matches(keys[-1], names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(sorted(names))}"
    return f"unknown setting '{setting}'; {hint}"


def _known_names(keys: tuple[str, ...]) -> list[str]:
    """Return the names of the settings that the section with these keys has."""
    section: type[BaseModel] = sections.Config
    # The sections in lists: the annotation of such a field is the list, which does not name them.
    in_lists: dict[str, type[BaseModel]] = {
        "trunks": sections.Trunk,
        "numbers": sections.Number,
        "targets": sections.Target,
        "users": sections.User,
        "webhooks": sections.Webhook,
        "voices": sections.SimilarVoice,
        "fallbacks": sections.ModelFallback,
    }
    for key in keys:
        if key.isdigit():
            continue
        found = in_lists.get(key) or section.model_fields[key].annotation
        if isinstance(found, type) and issubclass(found, BaseModel):
            section = found
    return list(section.model_fields)


def _line_of(text: str, keys: tuple[str, ...]) -> int:
    """Return the line of a setting, found by a search of the text that may miss it: `tomllib` tells no lines."""
    # Indexes (`sip.trunks.0`) are not in the text; the line of the first table with that name is near enough.
    names = [key for key in keys if not key.isdigit()]
    if not names:
        return 1
    start = 0
    if len(names) > 1 and (table := re.search(rf"^\s*\[+{re.escape('.'.join(names[:-1]))}\]", text, re.M)):
        start = table.start()
    # The setting, a table of its name, or the last part of a dotted key.
    wanted = re.compile(rf"^\s*(?:\[+)?(?:[\w.]*\.)?{re.escape(names[-1])}\b", re.M)
    found = wanted.search(text, start) or wanted.search(text)
    return text.count("\n", 0, found.start() + 1 if found else start) + 1


def override(config: sections.Config, changes: Mapping[str, object]) -> sections.Config:
    """Return the settings with some replaced (`{"sip.listen": "127.0.0.1:0"}`). Raises `ConfigError`."""
    # All settings are checked again: a new value may be valid and yet not fit the others.
    data = config.model_dump()
    for setting, value in changes.items():
        section, _, key = setting.rpartition(".")
        data[section][key] = value
    try:
        return sections.Config.model_validate(data).with_file(config.file)
    except ValidationError as error:
        raise ConfigError(_explain(error, None, "", {})) from None
