"""Files that are checked and have no effect here yet: safety filters, API integrations, MCP servers, test cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from callagent.agents.flows.documents import Reader

_CATEGORIES = ("violence", "hate", "sexual", "self_harm")
_LEVELS = ("lenient", "medium", "strict")
_API_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_AUTH_TYPES = ("none", "basic", "apiKey", "oauth2", "oauth2_client_credentials", "jwt_client_assertion")
_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")
_VALUE_TYPES = ("string", "integer", "number", "boolean")


def check_safety_filters(root: Reader) -> None:
    categories = root.map("categories")
    missing = [name for name in _CATEGORIES if name not in categories]
    if missing:
        root.error(f"Safety filter categories are missing: {missing}. List all four.", "categories")
    for name in _CATEGORIES:
        category = categories.map(name)
        category.flag("enabled")
        _one_of(category, "level", _LEVELS)


def check_channel_safety_filters(root: Reader) -> None:
    """Those of voice and chat say whether they hold."""
    if "enabled" not in root:
        root.error("'enabled' is required.", "enabled")
    check_safety_filters(root)


def check_api_integrations(root: Reader) -> None:
    for integration in root.maps("api_integrations"):
        name = integration.required_text("name")
        if name and not _API_NAME.fullmatch(name):
            integration.error(f"API integration name '{name}' should match [a-z_][a-z0-9_]*.", "name")
        environments = integration.map("environments")
        for environment in environments.names():
            section = environments.map(environment)
            section.text("base_url")
            _one_of(section, "auth_type", _AUTH_TYPES)
        for operation in integration.maps("operations"):
            operation.required_text("name")
            operation.required_text("resource")
            _one_of(operation, "method", _METHODS)


def check_mcp(root: Reader) -> None:
    seen: set[str] = set()
    for server in root.maps("mcp_servers"):
        name = server.required_text("provider_id")
        if name in seen:
            server.error(f"provider_id '{name}' is used twice.", "provider_id")
        seen.add(name)
        if not server.text("url").startswith(("http://", "https://")):
            server.error("'url' should be an http(s) address.", "url")
        kinds = [kind for kind in ("header", "query_param", "oauth") if kind in server.map("auth")]
        if "auth" in server and len(kinds) != 1:
            server.error("'auth' should hold exactly one of header, query_param and oauth.", "auth")
        timeout = server.number("timeout")
        if timeout is not None and not 1 <= timeout <= 30:
            server.error("'timeout' should be between 1 and 30 seconds.", "timeout")
        server.texts("enabled_functions")


def check_test_case(root: Reader) -> None:
    root.required_text("scenario")
    if "caller_number" in root and not isinstance(root.raw("caller_number"), str):
        root.error("'caller_number' should be str. Put it in quotes.", "caller_number")
    _one_of(root, "channel", ("voice", "webchat"))
    for assertion in root.maps("function_call_assertions"):
        assertion.required_text("name")
        for argument in assertion.maps("arguments"):
            argument.required_text("parameter_name")
            _one_of(argument, "value_type", _VALUE_TYPES)


def check_voice_extras(root: Reader) -> None:
    """Filler phrases and background sound of `voice/configuration.yaml`: here unknown keys are mistakes."""
    fillers, ambience = root.map("filler_phrases"), root.map("background_ambience")
    keys = ("enabled", "phrases", "randomize", "initial_interval_seconds", "interval_seconds")
    _known_keys(fillers, "filler_phrases", keys)
    if fillers.flag("enabled") and not fillers.texts("phrases"):
        fillers.error("'filler_phrases' is enabled and needs at least one phrase.", "enabled")
    for key, least in (("initial_interval_seconds", 0.5), ("interval_seconds", 1.0)):
        value = fillers.number(key)
        if value is not None and value < least:
            fillers.error(f"'{key}' should be at least {least:g}.", key)
    _known_keys(ambience, "background_ambience", ("enabled", "preset", "loudness"))
    loudness = ambience.number("loudness")
    if loudness is not None and not -70 <= loudness <= -20:
        ambience.error("'loudness' should be between -70 and -20.", "loudness")


CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "agent_settings/safety_filters.yaml": check_safety_filters,
    "voice/safety_filters.yaml": check_channel_safety_filters,
    "chat/safety_filters.yaml": check_channel_safety_filters,
    "config/api_integrations.yaml": check_api_integrations,
    "config/mcp.yaml": check_mcp,
    "voice/configuration.yaml": check_voice_extras,
}


def _one_of(reader: Reader, key: str, allowed: tuple[str, ...]) -> None:
    value = reader.text(key)
    if value and value not in allowed:
        reader.error(f"'{key}' should be one of {', '.join(allowed)}, not '{value}'.", key)


def _known_keys(reader: Reader, section: str, known: tuple[str, ...]) -> None:
    for key in reader.names():
        if key not in known:
            reader.error(f"'{section}' has no key '{key}'. It has: {', '.join(known)}.", key)
