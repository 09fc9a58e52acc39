"""The classes among an app's globals beside those of the published library, name by name."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx.runtime.app_code import CLASSES

NAMES = (
    "Blob", "CallbackContext", "Content", "Event", "EventActions", "FunctionCall", "FunctionDeclaration",
    "FunctionResponse", "GenerateContentConfig", "LlmRequest", "LlmResponse", "Part", "Tool", "ToolContext",
    "ToolDeclaration",
)  # fmt: skip
TEXT = {"text": "hello"}
CONTENT = {"parts": [TEXT], "role": "user"}
EVENT = {"id": "e", "author": "desk", "timestamp": 7, "invocationId": "i", "content": CONTENT,
         "longRunningToolIds": ["c"], "turnComplete": True, "errorCode": "x", "errorMessage": "y", "branch": "a.b",
         "groundingMetadata": {"a": 1},
         "partial": False, "interrupted": True,
         "actions": {"skipSummarization": True, "stateDelta": {"a": [1]}, "artifactDelta": {"b": 2}, "escalate": True,
                     "transferToAgent": "z", "requestedAuthConfigs": {"r": {}}, "endInvocation": False}}  # fmt: skip
CONTEXT = {"userContent": CONTENT, "invocationId": "i", "agentName": "Desk", "sessionId": "s", "state": {"k": {"l": 1}},
           "actions": EVENT["actions"], "events": [EVENT], "streamingStage": "x", "languageCode": "de-DE",
           "projectId": "p", "projectNumber": 4, "location": "us", "appId": "a", "turnIndex": 2}  # fmt: skip
WIRE: Mapping[str, Mapping[str, Any]] = {
    "Blob": {"displayName": "d", "data": "aGVsbG8=", "mimeType": "audio/wav", "transcript": "hello"},
    "CallbackContext": CONTEXT,
    "Content": CONTENT,
    "Event": EVENT,
    "EventActions": EVENT["actions"],  # type: ignore[dict-item]
    "FunctionCall": {"id": "c", "name": "f", "args": {"a": None}},
    "FunctionDeclaration": {"name": "f"},
    "FunctionResponse": {"id": "c", "name": "f", "response": {"output": 1}, "willContinue": True},
    "GenerateContentConfig": {"systemInstruction": CONTENT, "excludedTools": ["f"],
                              "tools": [{"functionDeclarations": [{"name": "f"}]}]},
    "LlmRequest": {"model": "m", "contents": [CONTENT], "config": {"excludedTools": ["f"]}},
    "LlmResponse": {"content": CONTENT, "partial": True, "turnComplete": False},
    "Part": {"functionResponse": {"name": "f", "response": {}}, "inlineData": {"mimeType": "a/b", "data": "aGVsbG8="}},
    "Tool": {"name": "f", "description": "d"},
    "ToolContext": {**CONTEXT, "functionCallId": "c"},
    "ToolDeclaration": {"functionDeclarations": [{"name": "f"}]},
}  # fmt: skip
CONSTRUCTORS: list[tuple[str, str, list[Any], dict[str, Any]]] = [
    ("Part", "from_text", ["hello"], {}),
    ("Part", "from_function_call", ["f", {"a": 1}], {}),
    ("Part", "from_function_call", [], {"name": "f", "args": {}}),
    ("Part", "from_function_response", ["f", {"output": 1}], {}),
    ("Part", "from_inline_data", [b"raw \xff", "image/png"], {}),
    ("Part", "from_json", ['{"a": 1}'], {}),
    ("Part", "from_audio", ["gs://a/b.wav"], {}),
    ("Part", "from_audio", ["gs://a/b.wav", True, False], {}),
    ("Part", "from_agent_transfer", ["Billing"], {}),
    ("Part", "from_end_session", [], {"reason": "done"}),
    ("Part", "from_end_session", [], {"reason": "person", "escalated": True}),
    ("Part", "from_customized_response", [], {}),
    ("Part", "from_customized_response", [], {"content": "c", "disable_barge_in": True, "enable_dtmf": True,
                                              "dtmf_finish_digit": "*", "dtmf_endpointing_timeout": 7}),
    ("Blob", "from_json", ['{"a": 1}'], {}),
]  # fmt: skip
READINGS = [
    ("Part", {"text": "hello"}, ["text_or_transcript"]),
    ("Part", WIRE["Part"], ["has_function_response", "f"]),
    ("Part", WIRE["Part"], ["has_function_call", "f"]),
    ("Part", {"inlineData": WIRE["Blob"]}, ["text_or_transcript"]),
    ("Blob", WIRE["Blob"], ["transcript"]),
    ("Content", CONTENT, ["is_user"]),
    ("Content", {"role": "model"}, ["is_model"]),
    ("Event", EVENT, ["is_user"]),
    ("Event", EVENT, ["is_agent"]),
    ("Event", EVENT, ["is_agent", "other"]),
    ("Event", EVENT, ["has_error"]),
    ("CallbackContext", CONTEXT, ["get_variable", "k"]),
    ("CallbackContext", CONTEXT, ["get_variable", "none", 5]),
]


@pytest.fixture(scope="module")
def published(wheel: Path) -> Any:
    spec = importlib.util.spec_from_file_location("published_classes", wheel / "cxas_scrapi/utils/callback_libs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(published: Any, name: str) -> tuple[Any, Any]:
    return CLASSES[name], getattr(published, name)


def cases(published: Any) -> list[Mapping[str, Any]]:
    return [CLASSES, vars(published)]


def test_every_published_class_is_a_global(published: Any) -> None:
    models = {
        name for name, each in vars(published).items() if isinstance(each, type) and name not in ("Any", "BaseModel")
    }
    assert models == set(NAMES)
    assert set(CLASSES) >= models


@pytest.mark.parametrize("name", NAMES)
def test_fields_and_their_other_names(published: Any, name: str) -> None:
    ours, theirs = both(published, name)
    aliases = {field: info.alias or field for field, info in theirs.model_fields.items()}
    assert {field: ours.model_fields[field].alias for field in aliases} == aliases
    assert {field: info.annotation for field, info in theirs.model_fields.items() if _is_plain(info.annotation)} == {
        field: ours.model_fields[field].annotation
        for field, info in theirs.model_fields.items()
        if _is_plain(info.annotation)
    }


@pytest.mark.parametrize("name", NAMES)
def test_methods_take_the_same_arguments(published: Any, name: str) -> None:
    ours, theirs = both(published, name)
    for called, each in inspect.getmembers(theirs):
        if called.startswith(("_", "model_")) or hasattr(published.BaseModel, called):
            continue
        assert hasattr(ours, called), called
        if not callable(each):
            continue
        wanted = list(inspect.signature(each).parameters.values())
        given = list(inspect.signature(getattr(ours, called)).parameters.values())
        assert [(one.name, one.kind) for one in given[: len(wanted)]] == [(one.name, one.kind) for one in wanted]
        assert all(one.default is not one.empty for one in given[len(wanted) :])
        for one, other in zip(given, wanted, strict=False):
            assert other.default is other.empty or one.default == other.default


@pytest.mark.parametrize("name", NAMES)
def test_the_wire_form_goes_in_and_out_as_the_librarys(published: Any, name: str) -> None:
    ours, theirs = both(published, name)
    wire = {**WIRE[name], "laterThanBoth": 1}
    mine, other = ours.model_validate(wire), theirs.model_validate(wire)
    assert mine.model_dump(by_alias=True, exclude_none=True) == other.model_dump(by_alias=True, exclude_none=True)
    assert mine.model_dump(exclude_none=True) == other.model_dump(exclude_none=True)
    assert json.loads(mine.model_dump_json(by_alias=True, exclude_none=True)) == json.loads(
        other.model_dump_json(by_alias=True, exclude_none=True)
    )
    snake = other.model_dump()
    assert ours.model_validate(snake) == mine
    assert ours(**snake) == mine
    assert ours.model_validate(mine.model_dump(by_alias=True)) == mine
    assert set(mine.model_dump(by_alias=True, exclude_none=True)) == set(WIRE[name])


@pytest.mark.parametrize(("name", "called", "arguments", "named"), CONSTRUCTORS)
def test_constructors_make_the_same(
    published: Any, name: str, called: str, arguments: list[Any], named: dict[str, Any]
) -> None:
    mine, other = (getattr(each, called)(*arguments, **named) for each in both(published, name))
    assert mine.model_dump(by_alias=True, exclude_none=True) == other.model_dump(by_alias=True, exclude_none=True)


def test_a_response_is_made_from_parts(published: Any) -> None:
    mine, other = (
        each["LlmResponse"]
        .from_parts([each["Part"].from_text("a"), each["Part"].from_json("{}")])
        .model_dump(by_alias=True, exclude_none=True)
        for each in cases(published)
    )
    assert mine == other


@pytest.mark.parametrize(("name", "wire", "asked"), READINGS)
def test_methods_answer_the_same(published: Any, name: str, wire: Mapping[str, Any], asked: list[Any]) -> None:
    method, *arguments = asked
    mine, other = (getattr(each.model_validate(wire), method)(*arguments) for each in both(published, name))
    assert mine == other


def test_what_changes_an_object_changes_it_as_the_librarys(published: Any) -> None:
    shown: list[list[Any]] = []
    for each in cases(published):
        blob, config, context = each["Blob"](), each["GenerateContentConfig"](), each["ToolContext"](state={"a": 1})
        blob.raw_data = b"hello"
        config.hide_tool("f")
        config.hide_tool("g")
        context.set_variable("b", 2)
        context.remove_variable("a")
        with pytest.raises(KeyError):
            context.remove_variable("a")
        shown.append([blob.model_dump(), blob.raw_data, config.model_dump(), context.state])
        assert context.variables is context.state
        context.variables = {"c": 3}
        shown[-1] += [context.state, context.function_call_id]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", ["ExternalResponse", "Requests", "StatusError", "HttpMethod"])
def test_what_the_library_lacks_is_a_global_too(name: str) -> None:
    wanted = {
        "ExternalResponse": {"text", "status_code", "reason", "ok", "json", "raise_for_status"},
        "Requests": {"get", "post", "put", "delete", "patch", "head", "options"},
        "StatusError": {"status_code", "reason"},
        "HttpMethod": {"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"},
    }[name]
    kind = CLASSES[name]
    made = kind if name == "HttpMethod" else kind()
    assert wanted <= set(dir(made))


def _is_plain(annotation: Any) -> bool:
    """Made of the language's own types only."""
    return not any(name in str(annotation) for name in NAMES)
