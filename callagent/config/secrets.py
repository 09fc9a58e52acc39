"""What the settings keep from others: secrets from texts, and the server's own files from project code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, SecretStr

from callagent.config.sections import Config

_SECRET_VARIABLE = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


def secret_values(config: Config) -> Iterator[str]:
    """Yield the secrets of the settings, and of the functions' environment variables those that are called so."""
    yield from _secrets(config)
    for name in config.function_environment:
        if _SECRET_VARIABLE.search(name) and (value := os.environ.get(name)):
            yield value


def _secrets(value: object) -> Iterator[str]:
    # All sections are searched: a setting that is added as a `SecretStr` is protected without a list of them.
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case BaseModel():
            for name in type(value).model_fields:
                yield from _secrets(getattr(value, name))
        case Mapping():
            for each in value.values():
                yield from _secrets(each)
        case tuple() | list():
            for each in value:
                yield from _secrets(each)
        case _:
            return


_HIDDEN = (".env", ".git", ".aws", ".cache", ".config", ".docker", ".gnupg", ".kube", ".local/state", ".netrc",
           ".pgpass", ".ssh")  # fmt: skip
"""In a project's folder: what holds keys, or more of the repository than the project."""
_FILE_SUFFIX = "_FILE"
"""Environment variables such as TWILIO_AUTH_TOKEN_FILE name files with secrets."""
_AUTHORITIES = "SSL_CERT_FILE"
"""It names no secret but certificates of authorities, which functions need for their own connections."""


def closed_paths(config: Config, project: Path) -> tuple[str, ...]:
    """Return the files and folders that stay closed to the code of a project, wherever they lie."""
    # Resolved, because the kernel's rules are of files and not of names: a link would lead around them.
    root = project.resolve()
    found = [Path(path).expanduser().resolve() for path in _named(config) if path]
    found += [root / name for name in _HIDDEN if (root / name).exists()]
    # Also a settings file that is not in use: it may hold passwords of another server.
    found += [folder / "callagent.toml" for folder in (root, Path.cwd()) if (folder / "callagent.toml").exists()]
    found += [_database(Path(config.records.path).resolve(), root)]
    # Other projects, also one in this project's folder; but not a folder around this project, which would close it.
    others = [Path(number.project).resolve() for number in config.numbers]
    found += [other for other in others if not root.is_relative_to(other)]
    return tuple(dict.fromkeys(map(str, found)))


def _named(config: Config) -> Iterator[str]:
    """Yield the paths that the settings and the environment name."""
    records, sip, http = config.records, config.sip, config.http
    yield from (config.file, records.path, records.spool, records.recordings, records.memory, records.json_lines)
    yield from (config.function_secrets, config.speech.voice_cache, sip.certificate, sip.key)
    yield from (http.certificate, http.key)
    yield from (value for name, value in os.environ.items() if name.endswith(_FILE_SUFFIX) and name != _AUTHORITIES)


def _database(path: Path, project: Path) -> Path:
    """Return the database's folder, where the server keeps more beside it; the file alone if the project lies there."""
    return path if project.is_relative_to(path.parent) else path.parent
