"""The classes among an app's globals."""

from __future__ import annotations

import json

import pytest

from callagent.agents.cx.runtime.app_code import may_import
from callagent.agents.cx.runtime.classes import (
    Blob,
    CallbackContext,
    Content,
    Event,
    GenerateContentConfig,
    LlmResponse,
    Part,
    ToolContext,
    plain,
)
from callagent.agents.cx.runtime.http import ExternalResponse, Requests, StatusError


def test_camel_case_and_unknown_fields_are_taken() -> None:
    part = Part.model_validate({"functionCall": {"name": "f", "args": {"a": 1}}, "later": 1})
    assert part.has_function_call("f")
    assert not part.has_function_response("f")
    event = Event.model_validate({"invocationId": "i", "author": "desk", "errorCode": "x", "longRunningToolIds": ["1"]})
    assert event.has_error()
    assert event.is_agent()
    assert event.is_agent("desk")
    assert not event.is_agent("other")
    assert event.parts() == []


def test_the_wire_forms_of_parts() -> None:
    assert plain(Part.from_agent_transfer("b")) == {
        "function_call": {"name": "transfer_to_agent", "args": {"agent_name": "b"}}
    }
    assert plain(Part.from_end_session(reason="r", escalated=True))["function_call"]["args"] == {
        "reason": "r", "session_escalated": True,
    }  # fmt: skip
    blob = Part.from_customized_response(content="c", enable_dtmf=True).inline_data
    assert blob is not None
    assert blob.mime_type == "application/json+agentResponse"
    assert json.loads(blob.raw_data or b"") == {
        "content": "c", "disableBargeIn": False, "enableDtmf": True, "dtmfFinishDigit": "#",
        "dtmfEndpointingTimeout": 3,
    }  # fmt: skip
    audio = Part.from_audio("gs://a/b.wav", cancellable=True).inline_data
    assert audio is not None
    assert audio.mime_type == "application/json+audio"
    assert json.loads(audio.raw_data or b"") == {"audioUri": "gs://a/b.wav", "cancellable": True, "interruptable": True}


def test_a_blob_has_its_data_in_base64() -> None:
    blob = Blob(mime_type="text/plain")
    blob.raw_data = b"hello world"
    assert blob.data == b"aGVsbG8gd29ybGQ="
    assert Blob.from_json('{"a": 1}').raw_data == b'{"a": 1}'
    spoken = Part(inline_data=Blob(mime_type="audio/wav", transcript="hello"))
    assert spoken.text_or_transcript() == "hello"
    assert Part.from_text("x").text_or_transcript() == "x"


def test_roles_are_known_by_both_names() -> None:
    assert Content(role="agent").is_model()
    assert Content(role="model").is_model()
    assert Content(role="user").is_user()
    assert LlmResponse.from_parts([Part.from_text("x")]).content == Content(role="model", parts=[Part(text="x")])


def test_a_tool_is_hidden() -> None:
    config = GenerateContentConfig()
    config.hide_tool("a")
    config.hide_tool("b")
    assert config.excluded_tools == ["a", "b"]


def test_the_last_row_of_the_callers_events_in_their_order() -> None:
    def event(author: str, *texts: str) -> Event:
        return Event(author=author, content=Content(parts=[Part(text=text) for text in texts]))

    events = [event("user", "0"), event("desk", "a"), event("user", "1", "2"), event("user", "3"), event("desk", "b")]
    context = ToolContext(state={"k": 1}, events=events, function_call_id="c")
    assert [part.text for part in context.get_last_user_input()] == ["1", "2", "3"]
    assert [part.text for part in context.get_last_agent_output()] == ["b"]
    assert len(context.parts()) == 6
    assert context.variables is context.state


def test_without_events_the_callers_words_are_the_last_input() -> None:
    context = CallbackContext(user_content=Content(role="user", parts=[Part(text="x")]))
    assert [part.text for part in context.get_last_user_input()] == ["x"]
    with pytest.raises(KeyError):
        context.remove_variable("none")


def test_an_answer_from_outside() -> None:
    good, bad = ExternalResponse('{"a": 1}'), ExternalResponse("gone", 404, "Not Found")
    assert good.ok
    assert good.json() == {"a": 1}
    good.raise_for_status()
    with pytest.raises(StatusError) as raised:
        bad.raise_for_status()
    assert (raised.value.status_code, raised.value.reason) == (404, "Not Found")
    with pytest.raises(json.JSONDecodeError):
        bad.json()
    with pytest.raises(ValueError, match="http and https addresses only"):
        Requests().get("file:///etc/passwd")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("json", True), ("typing", True), ("pydantic", True), ("numpy.linalg", True), ("google.protobuf", True),
     ("google.cloud.storage", False), ("socket", False), ("subprocess", False), ("requests", False),
     ("urllib.parse", True), ("urllib.request", False), ("callagent", False)],
)  # fmt: skip
def test_the_imports_that_are_allowed(name: str, allowed: bool) -> None:
    assert may_import(name) is allowed
