"""Every secret in the settings, so that it can be taken out of what others write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, SecretStr

from callagent.config.sections import Config

_SECRET_VARIABLE = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


def secret_values(config: Config) -> Iterator[str]:
    """Values of the settings that are secrets, and of the functions' environment variables that are called so."""
    yield from _secrets(config)
    for name in config.function_environment:
        if _SECRET_VARIABLE.search(name) and (value := os.environ.get(name)):
            yield value


def _secrets(value: object) -> Iterator[str]:
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
