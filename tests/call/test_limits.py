"""What one call may cost: transfers and tokens are counted, and what is refused is told to everybody concerned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, cast

import pytest

from callagent.agents import Action, Handoff, HandoffFailed, HangUp, LimitReached, Listen, Say
from callagent.call_info import EndReason
from callagent.errors import ProviderError
from callagent.legs.leg import TransferOutcome, TransferStatus
from callagent.models import Delta, MeteredModel, ModelSettings, ToolCall, Usage
from callagent.models.protocol import Message, Tool
from callagent.models.token_budget import TOKEN_BUDGET, TokenBudget, TokensSpent
from callagent.observability import Metrics
from callagent.records import CallRecord, format_call
from tests.call.test_call import Scene
from tests.fakes import FakeAgent, FakeLeg, Reply, says


def counted(record: CallRecord) -> str:
    metrics = Metrics()
    metrics.ended(record)
    return metrics.text({})


# Transfers --------------------------------------------------------------------------------------------------------

BUSY = TransferOutcome(TransferStatus.FAILED, "486 Busy Here")


def transferring(wishes: int, after: EndReason = EndReason.AGENT_HANGUP) -> Scene:
    """The caller asks once; the agent wants that many transfers, and then something else."""
    scene = Scene(
        FakeAgent([says(Handoff("support", "asked", "refer"))] * wishes + [says(HangUp(after))]), ["a person please"]
    )
    scene.caller_speaks(2.0)
    scene.at(0.0, lambda leg: setattr(leg, "transfer_outcome", BUSY))
    return scene


def reasons(scene: Scene) -> list[str]:
    return [turn.reason for turn in scene.agent.turns if isinstance(turn, HandoffFailed)]


def test_a_fourth_transfer_of_a_call_is_refused_and_told_to_agent_record_and_figures() -> None:
    scene = transferring(5)
    record = scene.play()
    assert [did for did in scene.leg.did if did.startswith("transfer")] == ["transfer refer sip:support@192.0.2.1"] * 3
    assert reasons(scene)[:3] == ["486 Busy Here"] * 3
    assert len(reasons(scene)) == 5
    assert all("limits.transfers" in reason for reason in reasons(scene)[3:])
    assert [one["limit"] for one in record.limits_reached] == ["transfers"] * 2
    assert 'callagent_limit_reached_total{limit="transfers"} 2' in counted(record)
    assert "transfers: the call has had" in format_call(record.to_json())
    assert record.end_reason == "agent_hangup"


def test_transfers_that_the_settings_refuse_count_too() -> None:
    scene = Scene(FakeAgent([says(Handoff("forbidden", "", "refer"))] * 3 + [says(HangUp())]), ["a person please"])
    scene.caller_speaks(2.0)
    scene.play(transfers=1)
    assert reasons(scene)[0] == "not a target"
    assert all("limits.transfers" in reason for reason in reasons(scene)[1:])


def test_the_fallback_of_a_number_is_tried_though_the_agent_has_had_its_transfers() -> None:
    scene = transferring(2, EndReason.ERROR)
    scene.agent.replies.append(says(HangUp()))
    record = scene.play(transfers=1, fallback="desk")
    assert record.handoff_destination == "desk"
    assert [one["target"] for one in record.transfers] == ["support", "desk"]
    assert [one["limit"] for one in record.limits_reached] == ["transfers"]


def test_who_watches_may_take_a_call_over_though_the_agent_has_had_its_transfers() -> None:
    scene = Scene(
        FakeAgent([says(Handoff("support", "", "refer")), says(Say("Stay, please."), Listen())]), ["a person"]
    )
    scene.caller_speaks(2.0)
    scene.at(0.0, lambda leg: setattr(leg, "transfer_outcome", BUSY))

    def take_over(leg: FakeLeg) -> None:
        leg.transfer_outcome = TransferOutcome(TransferStatus.SUCCEEDED, "200 OK")
        scene.call.take_over(Handoff("desk", "taken over", "refer"))

    scene.at(9.0, take_over)
    record = scene.play(transfers=0)
    assert record.handoff_destination == "desk"
    assert record.handoff


def test_an_agent_that_asks_for_transfers_for_ever_is_ended() -> None:
    scene = transferring(100)
    record = scene.play(transfers=1, fallback="desk")
    assert record.handoff_destination == "desk"
    assert record.handoff_reason == "transfers"
    assert len(record.limits_reached) == 11
    assert [one["target"] for one in record.transfers] == ["support", "desk"]
    assert record.end_reason == "error"


# Tokens -----------------------------------------------------------------------------------------------------------


class CountingModel:
    """Answers at once; `usage` is what it says of it."""

    def __init__(self, usage: Usage | None, answer: Sequence[Delta] = (Delta("Yes."),)) -> None:
        self.asked = 0
        self._usage = usage
        self._answer = answer

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        self.asked += 1
        for delta in self._answer:
            yield delta
        if self._usage is not None:
            yield Delta(usage=self._usage)

    async def close(self) -> None:
        return None


QUESTION: list[Message] = [{"role": "user", "content": "x" * 400}]


async def answer(model: MeteredModel, tools: Sequence[Tool] = ()) -> str:
    async with aclosing(cast("Any", model.stream(QUESTION, tools, ModelSettings()))) as deltas:
        return "".join([delta.text async for delta in deltas])


@pytest.fixture
def refusals() -> list[str]:
    return []


def budget(tokens: int, refusals: list[str]) -> TokenBudget:
    made = TokenBudget(tokens, refusals.append)
    TOKEN_BUDGET.set(made)
    return made


async def test_tokens_are_those_that_the_provider_counts(refusals: list[str]) -> None:
    spent = budget(100, refusals)
    model, inner = (made := CountingModel(Usage(60, 30))), made
    metered = MeteredModel(model)
    assert [await answer(metered) for _ in range(2)] == ["Yes.", "Yes."]
    assert spent.spent == 180
    for _ in range(2):
        with pytest.raises(TokensSpent, match=r"limits\.model_tokens is 100"):
            await answer(metered)
    assert inner.asked == 2
    assert len(refusals) == 1


async def test_tokens_are_a_quarter_of_the_characters_where_the_provider_does_not_count(refusals: list[str]) -> None:
    spent = budget(10_000, refusals)
    call = ToolCall("1", "send", '{"where": "' + "y" * 400 + '"}')
    await answer(MeteredModel(CountingModel(None, [Delta("z" * 400), Delta(tool_call=call)])))
    assert spent.spent == pytest.approx(300, rel=0.15)


async def test_an_answer_that_is_cut_has_cost_what_came_of_it(refusals: list[str]) -> None:
    spent = budget(10_000, refusals)
    stream = MeteredModel(CountingModel(Usage(9000, 1), [Delta("z" * 400)] * 3)).stream(QUESTION, [], ModelSettings())
    await anext(stream)
    await cast("Any", stream).aclose()
    assert spent.spent == pytest.approx(200, rel=0.15)


async def test_outside_of_calls_nothing_is_counted() -> None:
    assert TOKEN_BUDGET.get() is None
    assert await answer(MeteredModel(CountingModel(Usage(10**9, 0)))) == "Yes."


def thinking(model: MeteredModel) -> Reply:
    async def reply(turn: Any) -> AsyncIterator[Action]:
        yield Say(await answer(model))
        yield Listen()

    return reply


@pytest.mark.parametrize(("fallback", "end"), [("desk", "handoff"), ("", "error")])
def test_a_call_whose_tokens_are_spent_goes_to_its_fallback_or_ends_politely(fallback: str, end: str) -> None:
    model = CountingModel(Usage(900, 100))
    reply = thinking(MeteredModel(model))
    scene = Scene(FakeAgent([reply] * 4), ["one", "two", "three", "four"])
    for at in (2.0, 8.0, 14.0, 20.0):
        scene.caller_speaks(at)
    record = scene.play(model_tokens=2000, fallback=fallback)
    assert model.asked == 2
    assert record.end_reason == end
    assert record.turns[-1].spoken[-1].heard == "I am sorry, we have a technical problem right now."
    assert [one["limit"] for one in record.limits_reached] == ["model_tokens"]
    assert 'callagent_limit_reached_total{limit="model_tokens"} 1' in counted(record)
    if fallback:
        assert (record.handoff_destination, record.handoff_reason) == ("desk", "model_tokens")


def test_one_call_does_not_use_the_tokens_of_another() -> None:
    model = MeteredModel(CountingModel(Usage(900, 100)))
    for _ in range(3):
        scene = Scene(FakeAgent([thinking(model), says(HangUp())]), ["one", "bye"])
        scene.caller_speaks(2.0)
        scene.caller_speaks(8.0)
        assert scene.play(model_tokens=1000).limits_reached == []


def test_the_refusal_is_a_providers_failure_for_who_asked() -> None:
    assert issubclass(TokensSpent, ProviderError)


def test_a_limit_that_the_agent_tells_of_is_in_the_record() -> None:
    told = LimitReached("messages", "the text message to +15550100 was not sent")
    scene = Scene(FakeAgent([says(told, HangUp())]), ["text me"])
    scene.caller_speaks(2.0)
    record = scene.play()
    (reached,) = record.limits_reached
    assert (reached["limit"], reached["detail"]) == ("messages", told.detail)
