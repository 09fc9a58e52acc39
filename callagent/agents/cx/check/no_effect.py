"""What an app may say and nothing here heeds, and arguments that the platform would not take; the check tells both."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from callagent.agents.cx.engine import as_map

_VOICE = "has no effect here: the settings name the voice"
_RECORDED = "is a place below records.recordings here, where the settings have one: the bucket is not written to"
_KEPT = "has no effect here: what is kept of a call is the settings' to say"
TRUNK = "has no effect here: the settings' targets say over which trunk a call leaves"
ENDS = "has no effect here: the session is over when the call is given away"
_IN_VARIABLES = {"use_originating_trunk": TRUNK, "useOriginatingTrunk": TRUNK, "endSession": ENDS}
_TRANSFERS = ("PHONE_GATEWAY_TRANSFER", "LIVE_AGENT_HANDOFF")
_OF_THE_APP: Mapping[tuple[str, ...], str] = {
    ("audioProcessingConfig", "synthesizeSpeechConfigs"): _VOICE,
    ("loggingSettings", "audioRecordingConfig"): _RECORDED,
    ("loggingSettings", "unredactedAudioRecordingConfig"): _RECORDED,
    ("loggingSettings", "redactionConfig"): _KEPT,
    ("loggingSettings", "conversationLoggingSettings"): _KEPT,
    ("loggingSettings", "cloudLoggingSettings"): "has no effect here: the log is the server's",
    ("loggingSettings", "bigqueryExportSettings"): "has no effect here: records are in the store",
    ("defaultChannelProfile", "noiseSuppressionLevel"): "has no effect here: there is no suppression of noise",
    ("dataStoreSettings",): "has no effect here: there are no data stores of the platform",
}
_HINTED: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "dict": (dict,), "list": (list,)
}  # fmt: skip
_PROACTIVE = "'proactiveExecutionEnabled' has no effect here: the callback runs once for each whole answer"


def of_app(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and reason."""
    for path, reason in _OF_THE_APP.items():
        value: Any = data
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value:
            yield path[-1], f"'{path[-1]}' {reason}"
    for declared in data.get("variableDeclarations") or ():
        if isinstance(declared, Mapping) and declared.get("name") in _TRANSFERS:
            default = (declared.get("schema") or {}).get("default")
            for key in as_map(default).keys() & _IN_VARIABLES.keys():
                yield key, f"'{key}' {_IN_VARIABLES[key]}"


def of_agent(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for callback in data.get("afterModelCallbacks") or ():
        if isinstance(callback, Mapping) and callback.get("proactiveExecutionEnabled") and not callback.get("disabled"):
            yield "proactiveExecutionEnabled", _PROACTIVE


def of_tool(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Line and reason of defaults that the platform does not take."""
    given = function.args
    places = [*zip(given.args[len(given.args) - len(given.defaults) :], given.defaults, strict=True)]
    places += [
        (each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is not None
    ]
    for argument, default in places:
        if not isinstance(default, ast.Constant):
            continue
        hint = argument.annotation.id if isinstance(argument.annotation, ast.Name) else ""
        if default.value is None:
            yield default.lineno, f"'{argument.arg}' has the default None: the platform drops such an argument"
        elif hint in _HINTED and type(default.value) not in _HINTED[hint]:
            yield default.lineno, f"'{argument.arg}' is hinted as {hint}; its default {default.value!r} is none"
