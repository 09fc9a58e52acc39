"""A model that does not begin to answer in time is followed by the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from callagent.errors import AnswerWithheld, ProviderError, ProviderRefused, ProviderTimeout
from callagent.models import Delta, Message, ModelSettings, Tool, ToolCall
from callagent.models.failover import FailoverModel
from callagent.testing.virtual_time import run


@dataclass
class Model:
    name: str
    first: float = 0.1
    error: ProviderError | None = None
    fails_after: int = 0
    whole: bool = True
    """Each piece is a sentence."""
    pause: float = 1.5
    calls: bool = False
    """A function, with the first piece."""
    thinks: int = 0
    """So many steps before the first piece, of which nothing can be passed on."""
    messages: list[Sequence[Message]] = field(default_factory=list)
    asked: list[ModelSettings] = field(default_factory=list)
    ended: int = 0

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        self.asked.append(settings)
        self.messages.append(messages)
        try:
            await asyncio.sleep(self.first)
            for _ in range(self.thinks):
                yield Delta(progress=True)
                await asyncio.sleep(self.pause)
            for number in range(3):
                if self.error and number == self.fails_after:
                    raise self.error
                call = ToolCall("1", "book", "{}") if self.calls else None
                yield Delta(f"{self.name}{number}. " if self.whole else f"{self.name}{number} ", call)
                await asyncio.sleep(self.pause)
        finally:
            self.ended += 1

    async def close(self) -> None:
        return None


def over(*models: Model) -> FailoverModel:
    return FailoverModel([(f"openai/{model.name}", model) for model in models])


async def ask(model: FailoverModel, settings: ModelSettings | None = None) -> str:
    deltas = [
        delta async for delta in model.stream([{"role": "user", "content": "Hi"}], (), settings or ModelSettings())
    ]
    return "".join(delta.text for delta in deltas)


def test_the_first_answers_and_may_take_its_time_once_it_has_begun() -> None:
    second = Model("b")
    assert run(ask(over(Model("a"), second))) == "a0. a1. a2. "
    assert second.asked == []


@pytest.mark.parametrize("error", [ProviderError("500"), ProviderRefused("no", 401), ProviderTimeout("late")])
def test_one_that_fails_before_it_began_is_followed_by_the_next(error: ProviderError) -> None:
    assert run(ask(over(Model("a", error=error), Model("b")))) == "b0. b1. b2. "


def test_what_is_not_safe_is_said_by_no_other_model_where_safety_is_asked_for() -> None:
    first, second = Model("a", error=AnswerWithheld("SAFETY")), Model("b")
    model = over(first, second)
    safe = ModelSettings(safety={"HARM_CATEGORY_HARASSMENT": "BLOCK_LOW_AND_ABOVE"})
    for _ in range(4):
        with pytest.raises(AnswerWithheld):
            run(ask(model, safe))
    assert (len(first.asked), second.asked, model.lineup.outages) == (4, [], 0)
    assert run(ask(model)) == "b0. b1. b2. "


def test_one_that_does_not_begin_within_2_5_s_is_followed_by_the_next() -> None:
    slow = Model("a", first=100)
    assert run(ask(over(slow, Model("b")))) == "b0. b1. b2. "
    assert slow.ended == 1


def test_words_before_the_first_whole_sentence_are_taken_back() -> None:
    first = Model("a", error=ProviderError("cut"), fails_after=2, whole=False)
    assert run(ask(over(first, Model("b", whole=False)))) == "b0 b1 b2 "


def test_an_answer_that_stops_is_not_waited_for() -> None:
    first, second = Model("a", pause=60.0), Model("b")
    assert run(ask(over(first, second))) == "a0. b0. b1. b2. "
    assert first.ended == 1
    with pytest.raises(ProviderTimeout):
        run(ask(over(Model("a", pause=60.0))))
    assert run(ask(over(Model("a", pause=60.0, whole=False), second))) == "b0. b1. b2. "


def test_another_model_gives_the_rest_of_an_answer_that_was_cut() -> None:
    first = Model("a", error=ProviderError("cut"), fails_after=2)
    second = Model("b")
    assert run(ask(over(first, second))) == "a0. a1. b0. b1. b2. "
    (note, question) = second.messages[0]
    assert "a0. a1." in note["content"]
    assert question == {"role": "user", "content": "Hi"}


def test_what_the_caller_has_heard_is_not_said_again() -> None:
    first = Model("a", error=ProviderError("cut"), fails_after=2)
    assert run(ask(over(first, Model("a")))) == "a0. a1. a2. "


def test_a_model_of_this_machine_is_asked_as_ever() -> None:
    first, rules = Model("a", error=ProviderError("cut"), fails_after=1), Model("a")
    assert run(ask(FailoverModel([("openai/a", first), ("rules", rules)]))) == "a0. a1. a2. "
    assert rules.messages == [[{"role": "user", "content": "Hi"}]]


def test_an_answer_that_has_called_a_function_is_not_begun_again() -> None:
    first, second = Model("a", error=ProviderError("cut"), fails_after=1, calls=True), Model("b")
    with pytest.raises(ProviderError, match="cut"):
        run(ask(over(first, second)))
    assert second.asked == []


def test_the_last_model_has_more_time_to_begin() -> None:
    assert run(ask(over(Model("a", first=100), Model("b", first=5.9)))) == "b0. b1. b2. "
    with pytest.raises(ProviderTimeout):
        run(ask(over(Model("a", first=100), Model("b", first=6.1))))


def test_a_long_tool_call_in_parts_is_no_silence() -> None:
    assert run(ask(over(Model("a", thinks=8), Model("b")))) == "a0. a1. a2. "


def test_another_provider_is_not_asked_for_the_firsts_model() -> None:
    first, second = Model("a", error=ProviderError("500")), Model("b")
    run(ask(over(first, second), ModelSettings(model="large", temperature=0.5)))
    assert first.asked == [ModelSettings(model="large", temperature=0.5)]
    assert second.asked == [ModelSettings(temperature=0.5)]


def test_after_three_failures_it_is_not_asked_for_a_while() -> None:
    first = Model("a", error=ProviderError("500"))
    model = over(first, Model("b"))

    async def calls() -> None:
        await asyncio.gather(*(ask(model) for _ in range(3)))
        await ask(model)

    run(calls())
    assert len(first.asked) == 3


def test_when_all_fail_the_last_reason_is_raised() -> None:
    model = over(Model("a", error=ProviderError("first")), Model("b", error=ProviderError("second")))
    with pytest.raises(ProviderError, match="second"):
        run(ask(model))
    assert model.lineup.outages == 1


def test_each_call_has_its_own_view_and_the_shared_breaker() -> None:
    model = over(Model("a"))
    assert model.for_call() is not model
    assert model.for_call().lineup.members[0].breaker is model.lineup.members[0].breaker  # type: ignore[attr-defined]


def test_closing_the_iterator_ends_the_answer() -> None:
    first = Model("a")

    async def interrupted() -> None:
        answering = over(first).stream((), (), ModelSettings())
        await anext(answering)
        await answering.aclose()  # type: ignore[attr-defined]

    run(interrupted())
    assert first.ended == 1
