from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.models.protocol import Delta, LanguageModel, ModelSettings, ToolCall, for_call
from callagent.models.scripted import ScriptedModel, ScriptError
from callagent.testing.virtual_time import run

BOOK = {"type": "function", "function": {"name": "book", "description": "Book a table", "parameters": {}}}
MESSAGES = [
    {"role": "system", "content": "You take bookings."},
    {"role": "user", "content": "four people"},
    {"role": "tool", "tool_call_id": "1", "content": "done"},
]


async def answer(model: LanguageModel, tools: list[dict[str, object]] | None = None) -> list[Delta]:
    return [delta async for delta in model.stream(MESSAGES, tools or [], ModelSettings())]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_entries_answer_in_order() -> None:
    model = ScriptedModel.from_entries({"text": "For how many people?"}, {"text": "Thank you."})
    assert text(await answer(model)) == "For how many people?"
    assert text(await answer(model)) == "Thank you."
    assert model.remaining == 0


async def test_text_arrives_in_pieces() -> None:
    deltas = await answer(ScriptedModel.from_entries({"text": "For how many people?"}))
    assert [delta.text for delta in deltas] == ["For ", "how ", "many ", "people?"]


async def test_text_and_calls_stand_together() -> None:
    model = ScriptedModel.from_entries({"text": "One moment.", "calls": [{"name": "book", "arguments": {"size": 4}}]})
    deltas = await answer(model)
    assert text(deltas) == "One moment."
    assert deltas[-1].tool_call == ToolCall("call_1_1", "book", json.dumps({"size": 4}))


async def test_arguments_given_as_text_are_passed_as_they_are() -> None:
    deltas = await answer(ScriptedModel.from_entries({"calls": [{"name": "book", "arguments": '{"size": '}]}))
    assert deltas[0].tool_call is not None
    assert deltas[0].tool_call.arguments == '{"size": '


def test_delay_comes_before_the_first_token() -> None:
    async def first_token_at() -> float:
        await anext(aiter(ScriptedModel.from_entries({"text": "Hello.", "delay": 1.2}).stream([], [], ModelSettings())))
        return asyncio.get_running_loop().time()

    assert run(first_token_at()) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("error", "raised"),
    [("timeout", ProviderTimeout), ("refused", ProviderRefused), ("500", ProviderError), (500, ProviderError)],
)
async def test_provider_fails_as_scripted(error: object, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        await answer(ScriptedModel.from_entries({"error": error}))


async def test_cut_comes_in_the_middle_of_the_text() -> None:
    heard = []

    async def listen() -> None:
        async for delta in ScriptedModel.from_entries({"text": "one two three four", "error": "cut"}).stream(
            [], [], ModelSettings()
        ):
            heard.append(delta.text)

    with pytest.raises(ProviderError):
        await listen()
    assert "".join(heard) == "one two "


async def test_request_without_an_entry_is_printed() -> None:
    with pytest.raises(ScriptError, match=r"(?s)0 entries.*book.*user: four people"):
        await answer(ScriptedModel.from_entries(), [BOOK])


async def test_expectation_that_holds_changes_nothing() -> None:
    expect = {"tools": ["book"], "system": "take book", "last_user": "^four"}
    assert text(await answer(ScriptedModel.from_entries({"expect": expect, "text": "Yes."}), [BOOK])) == "Yes."


@pytest.mark.parametrize(
    ("expect", "both_sides"),
    [
        ({"tools": ["cancel"]}, r"expected \['cancel'\], offered \['book'\]"),
        ({"system": "refunds"}, r"(?s)/refunds/.*You take bookings"),
        ({"last_user": "^five"}, r"/\^five/, got: 'four people'"),
    ],
)
async def test_mismatch_shows_both_sides(expect: dict[str, object], both_sides: str) -> None:
    with pytest.raises(ScriptError, match=both_sides):
        await answer(ScriptedModel.from_entries({"expect": expect, "text": "Yes."}), [BOOK])


async def test_calls_at_the_same_time_have_their_own_position() -> None:
    shared = ScriptedModel.from_entries({"text": "one"}, {"text": "two"})
    first, second = for_call(shared), for_call(shared)
    assert text(await answer(first)) == "one"
    assert text(await answer(second)) == "one"
    assert text(await answer(first)) == "two"
    assert text(await answer(for_call(shared))) == "one"


@pytest.mark.parametrize(
    ("yaml", "complaint"),
    [
        ("text: hello", "is a list"),
        ("- hello", "entry 1: expected a map"),
        ("- text: a\n- txt: b", "entry 2: unknown key txt; known here: calls, delay, error, expect, text"),
        ("- delay: 1", "needs text, calls or error"),
        ("- error: sometimes", "expected one of timeout"),
        ("- text: 5", "put it in quotes"),
        ("- {text: a, delay: soon}", "expected seconds"),
        ("- {text: a, delay: true}", "expected seconds"),
        ("- calls: book", "expected a list"),
        ("- calls: [book]", "a call is"),
        ("- calls: [{name: book, args: {}}]", "unknown key args"),
        ("- {text: a, expect: yes}", "expect is 'yes'"),
        ("- {text: a, expect: {tool: [a]}}", "unknown key tool"),
        ("- {text: a, expect: {tools: a}}", "a list of names"),
        ("- {text: a, expect: {system: '('}}", "not a regular expression"),
        ("- [", "not valid YAML"),
    ],
)
def test_script_that_is_none_says_where(tmp_path: Path, yaml: str, complaint: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(yaml)
    with pytest.raises(ScriptError, match=complaint):
        ScriptedModel.from_file(path)


def test_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"nowhere\.yaml cannot be read"):
        ScriptedModel.from_file(tmp_path / "nowhere.yaml")


async def test_file_is_read_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(
        '- text: "For how many people?"\n'
        "- calls: [{name: book, arguments: {size: 4}}]\n"
        "- expect: {tools: [book]}\n"
        "  text: ok\n"
        "- error: cut\n"
    )
    model = ScriptedModel.from_file(path)
    assert model.remaining == 4
    assert text(await answer(model)) == "For how many people?"
