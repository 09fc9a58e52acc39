"""The secrets of the settings, which logs and records leave out, and the files that are closed to project code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, SecretStr

from callagent.config.sections import Config

_SECRET_VARIABLE = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


def secret_values(config: Config) -> Iterator[str]:
    """Yield the secrets of the settings, and the function environment variables whose names suggest a secret."""
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
"""Entries of a project's folder that may hold keys or, as `.git` does, other files of the repository."""
_FILE_SUFFIX = "_FILE"
"""Environment variables such as TWILIO_AUTH_TOKEN_FILE name files with secrets."""
_CERTIFICATES_VARIABLE = "SSL_CERT_FILE"
"""Its file holds no secret but certificates of authorities, which functions need for their own connections."""


def closed_paths(config: Config, project: Path) -> tuple[str, ...]:
    """Return the files and folders that stay closed to the code of a project, wherever they lie."""
    # Paths are resolved, because the kernel's rules apply to files and not to names: a link would lead around them.
    root = project.resolve()
    found = [Path(path).expanduser().resolve() for path in _named_paths(config) if path]
    found += [root / name for name in _HIDDEN if (root / name).exists()]
    # A settings file that is not in use is closed as well: it may hold passwords of another server.
    found += [folder / "callagent.toml" for folder in (root, Path.cwd()) if (folder / "callagent.toml").exists()]
    found += [_database_path(Path(config.records.path).resolve(), root)]
    # Other projects are closed, even inside this one's folder, but not a folder that contains this project.
    others = [Path(number.project).resolve() for number in config.numbers]
    found += [other for other in others if not root.is_relative_to(other)]
    return tuple(dict.fromkeys(map(str, found)))


def _named_paths(config: Config) -> Iterator[str]:
    """Yield the paths that the settings and the environment name."""
    records, sip, http = config.records, config.sip, config.http
    yield from (config.file, records.path, records.spool, records.recordings, records.memory, records.json_lines)
    yield from (config.function_secrets, config.speech.voice_cache, sip.certificate, sip.key)
    yield from (http.certificate, http.key)
    yield from (
        value for name, value in os.environ.items() if name.endswith(_FILE_SUFFIX) and name != _CERTIFICATES_VARIABLE
    )


def _database_path(path: Path, project: Path) -> Path:
    """Return the folder of the database, because the server keeps more there; only the file if the project is there."""
    return path if project.is_relative_to(path.parent) else path.parent
