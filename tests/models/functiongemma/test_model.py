"""What becomes of good and bad answers of the weights."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callagent.errors import ProviderError
from callagent.models import Delta, ModelSettings, Usage
from callagent.models.functiongemma import CompletionRequest, FunctionGemmaModel, Piece
from callagent.models.functiongemma.prompt import one_utterance
from callagent.models.rules import RulesModel
from callagent.models.scripted import ScriptedModel
from tests.models.functiongemma.gbnf_matcher import Grammar


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [tool("set_timer", minutes={"type": "integer"}), tool("weather", city={"type": "string"})]
MESSAGES = [{"role": "user", "content": "Tea"}]
START, END = "<start_function_call>", "<end_function_call>"


def call(inside: str) -> str:
    return f"{START}call:{inside}{END}"


class ScriptedEngine:
    """Says the texts given, one per request."""

    def __init__(self, *answers: str, constrains: bool = False) -> None:
        self.constrains = constrains
        self.requests: list[CompletionRequest] = []
        self.closed = False
        self._answers = deque(answers)

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        self.requests.append(request)
        for char in self._answers.popleft():
            yield Piece(char)
        yield Piece(finished=True)

    async def close(self) -> None:
        self.closed = True


async def ask(model: FunctionGemmaModel, messages: Any = MESSAGES, tools: Any = TOOLS) -> tuple[str, list[Any]]:
    deltas: list[Delta] = [delta async for delta in model.stream(messages, tools, ModelSettings())]
    calls = [(each.tool_call.name, json.loads(each.tool_call.arguments)) for each in deltas if each.tool_call]
    return "".join(delta.text for delta in deltas), calls


async def test_arguments_come_in_their_types() -> None:
    engine = ScriptedEngine(call("set_timer{minutes:<escape>5<escape>}") + call("weather{city:<escape>007<escape>}"))
    assert await ask(FunctionGemmaModel(engine)) == ("", [("set_timer", {"minutes": 5}), ("weather", {"city": "007"})])


async def test_same_call_twice_is_meant_once() -> None:
    engine = ScriptedEngine(call("set_timer{minutes:5}") * 3)
    assert await ask(FunctionGemmaModel(engine)) == ("", [("set_timer", {"minutes": 5})])


async def test_invalid_arguments_are_sent_back_once_with_what_is_wrong() -> None:
    engine = ScriptedEngine(call("set_timer{minutes:<escape>a few<escape>}"), call("set_timer{minutes:5}"))
    assert await ask(FunctionGemmaModel(engine)) == ("", [("set_timer", {"minutes": 5})])
    first, second = engine.requests
    assert second.prompt.startswith(first.prompt.partition("<start_function_declaration>")[0])
    assert second.prompt.endswith(
        f"{call('set_timer{minutes:<escape>a few<escape>}')}<start_function_response>response:set_timer{{error:<escape>"
        "minutes: expected an integer, got 'a few'<escape>}<end_function_response>"
    )
    assert "declaration:weather" not in second.prompt


async def test_engine_that_constrains_gets_the_grammar_of_the_function() -> None:
    engine = ScriptedEngine(call("set_timer{}"), call("set_timer{minutes:5}"), constrains=True)
    assert await ask(FunctionGemmaModel(engine)) == ("", [("set_timer", {"minutes": 5})])
    assert engine.requests[0].grammar == ""
    rules = Grammar.parse(engine.requests[1].grammar)
    assert rules.accepts(call("set_timer{minutes:5}") + "<start_function_response>")
    assert not rules.accepts(call("set_timer{}") + "<start_function_response>")
    assert not rules.accepts(call("weather{city:<escape>Paris<escape>}") + "<start_function_response>")


async def test_invented_function_is_not_forced_into_another() -> None:
    engine = ScriptedEngine(call("launch{at:1}"), "I cannot do that.", constrains=True)
    assert await ask(FunctionGemmaModel(engine)) == ("I cannot do that.", [])
    assert "there is no function" in engine.requests[1].prompt
    assert engine.requests[1].grammar == ""


async def test_truncated_call_is_asked_for_again_with_more_room() -> None:
    engine = ScriptedEngine(f"{START}call:weather{{city:<escape>Par", call("weather{city:<escape>Paris<escape>}"))
    assert await ask(FunctionGemmaModel(engine)) == ("", [("weather", {"city": "Paris"})])
    assert engine.requests[1].max_tokens == 2 * engine.requests[0].max_tokens


async def test_truncated_call_that_is_complete_counts() -> None:
    engine = ScriptedEngine(f"{START}call:set_timer{{minutes:5}}")
    assert await ask(FunctionGemmaModel(engine)) == ("", [("set_timer", {"minutes": 5})])


async def test_good_call_beside_a_bad_one_is_kept() -> None:
    engine = ScriptedEngine(call("set_timer{minutes:5}") + call("weather{}"), call("weather{city:Paris}"))
    assert await ask(FunctionGemmaModel(engine)) == (
        "",
        [("set_timer", {"minutes": 5}), ("weather", {"city": "Paris"})],
    )


async def test_unknown_function_behind_a_good_call_is_left_to_whoever_runs_them() -> None:
    engine = ScriptedEngine(call("set_timer{minutes:5}") + call("done{}"))
    assert await ask(FunctionGemmaModel(engine)) == ("", [("set_timer", {"minutes": 5}), ("done", {})])
    assert len(engine.requests) == 1


@pytest.mark.parametrize("second", [call("set_timer{}"), call("launch{}"), "", START])
async def test_there_is_no_third_request(second: str) -> None:
    engine = ScriptedEngine(call("set_timer{}"), second)
    with pytest.raises(ProviderError, match="cannot be used"):
        await ask(FunctionGemmaModel(engine))
    assert len(engine.requests) == 2


async def test_words_without_a_call_are_spoken() -> None:
    assert await ask(FunctionGemmaModel(ScriptedEngine("I can only set timers."))) == ("I can only set timers.", [])


async def test_irrelevant_utterance_goes_to_the_fallback() -> None:
    engine, larger = ScriptedEngine("I can only set timers."), ScriptedModel.from_entries({"text": "Good evening."})
    assert await ask(FunctionGemmaModel(engine, fallback=larger)) == ("Good evening.", [])


async def test_fallback_is_asked_by_its_own_name_and_both_are_counted() -> None:
    class Counting(ScriptedEngine):
        async def complete(self, request: CompletionRequest) -> AsyncIterator[Piece]:
            yield Piece("I cannot.")
            yield Piece(usage=Usage(40, 3), finished=True)

    class Larger:
        async def stream(self, messages: Any, tools: Any, settings: ModelSettings) -> AsyncIterator[Delta]:
            assert settings.model == ""
            yield Delta("Good evening.")
            yield Delta(usage=Usage(100, 5))

        async def close(self) -> None:
            pass

    model = FunctionGemmaModel(Counting(), fallback=Larger())
    deltas = [delta async for delta in model.stream(MESSAGES, TOOLS, ModelSettings(model="gemma"))]
    assert deltas == [Delta("Good evening."), Delta(usage=Usage(140, 8))]


async def test_where_there_is_nothing_larger_the_step_says_what_follows() -> None:
    model = FunctionGemmaModel(ScriptedEngine("I cannot do that."), fallback=RulesModel())
    step = {"role": "system", "content": "Say: For how long?\nOtherwise say: I only set timers."}
    said = [step, {"role": "user", "content": "what is love"}]
    assert await ask(model, said) == ("I only set timers.", [])


async def test_each_call_has_its_own_view_of_the_fallback() -> None:
    model = FunctionGemmaModel(ScriptedEngine("No.", "No."), fallback=ScriptedModel.from_entries({"text": "Hello."}))
    for _ in range(2):
        assert await ask(model.for_call()) == ("Hello.", [])


async def test_fallback_is_not_asked_where_a_function_is_called() -> None:
    engine, larger = ScriptedEngine(f"Sure.{call('set_timer{minutes:5}')}"), ScriptedModel.from_entries({"text": "No"})
    assert await ask(FunctionGemmaModel(engine, fallback=larger)) == ("", [("set_timer", {"minutes": 5})])
    assert larger.remaining == 1


async def test_request_without_functions_is_the_fallbacks() -> None:
    larger = ScriptedModel.from_entries({"text": "A summary."})
    engine = ScriptedEngine()
    assert await ask(FunctionGemmaModel(engine, fallback=larger), tools=[]) == ("A summary.", [])
    assert engine.requests == []


async def test_chain_of_functions_goes_through_the_loop() -> None:
    engine = ScriptedEngine(call("weather{city:<escape>Paris<escape>}"))
    history = [
        {"role": "user", "content": "Old"},
        {"role": "assistant", "content": "Old answer"},
        *MESSAGES,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": '{"city": "Paris"}'},
    ]
    assert await ask(FunctionGemmaModel(engine), history) == ("", [("weather", {"city": "Paris"})])
    assert engine.requests[0].prompt.endswith(
        "<start_of_turn>user\nTea<end_of_turn>\n<start_of_turn>model\n<start_function_call>call:set_timer{minutes:5}"
        "<end_function_call><start_function_response>response:set_timer{city:<escape>Paris<escape>}"
        "<end_function_response>"
    )
    assert "Old" not in engine.requests[0].prompt


async def test_conversation_that_cannot_be_written_is_the_providers_error() -> None:
    with pytest.raises(ProviderError, match="cannot be written"):
        await ask(FunctionGemmaModel(ScriptedEngine("")), [{"role": "tool", "content": "x"}])


async def test_closing_closes_the_engine() -> None:
    engine = ScriptedEngine()
    await FunctionGemmaModel(engine, fallback=ScriptedModel.from_entries()).close()
    assert engine.closed


def test_the_model_sees_one_utterance_and_the_nearest_instructions() -> None:
    def message(role: str, content: str) -> dict[str, Any]:
        return {"role": role, "content": content}

    talk = [message("system", "project"), message("user", "one"), message("assistant", "two"), message("user", "three")]
    assert one_utterance([*talk, message("system", "step")]) == [message("system", "step"), message("user", "three")]
    assert one_utterance([message("assistant", "Welcome")]) == [message("assistant", "Welcome")]
    assert one_utterance([]) == []
