"""`config/api_integrations.yaml`: outside services that functions call as `conv.api.<integration>.<operation>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callagent.agents.kernel import Reader

AUTH_TYPES = ("none", "basic", "apiKey", "oauth2", "oauth2_client_credentials", "jwt_client_assertion")
METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    resource: str
    """A path with `{variables}`, perhaps with a query."""


@dataclass(frozen=True, slots=True)
class ApiIntegration:
    name: str
    environments: Mapping[str, tuple[str, str]]
    """Environment (`sandbox`, `pre-release`, `live`) -> base URL and kind of authentication."""
    operations: Mapping[str, Operation]

    def plain(self, environment: str) -> dict[str, Any]:
        """What a worker needs of it."""
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
            auth_type = _one_of(section, "auth_type", AUTH_TYPES, "none")
            environments[environment.replace("_", "-")] = (section.text("base_url").rstrip("/"), auth_type)
        found[name] = ApiIntegration(name, environments, _operations(reader))
    return found


def _operations(reader: Reader) -> dict[str, Operation]:
    return {
        each.required_text("name"): Operation(
            _one_of(each, "method", METHODS, "GET"), each.required_text("resource").lstrip("/")
        )
        for each in reader.maps("operations")
    }


def _one_of(reader: Reader, key: str, allowed: tuple[str, ...], default: str) -> str:
    value = reader.text(key) or default
    if value not in allowed:
        reader.error(f"'{key}' should be one of {', '.join(allowed)}, not '{value}'.", key)
    return value
