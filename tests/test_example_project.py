"""The project at the repository root, walked as text: with a scripted model and with the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import (
    Action,
    Agent,
    AgentRecord,
    CallerTurn,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    HandoffFailed,
    HangUp,
    Listen,
    Say,
    StepEntered,
)
from callagent.agents.flows.check import check_project
from callagent.agents.flows.engine.conversation import FlowSettings
from callagent.agents.flows.flow_project import load_flow_project, project_runtime
from callagent.call_info import CallInfo, EndReason
from callagent.models import LanguageModel
from callagent.models.rules import RulesModel
from callagent.models.scripted import ScriptedModel
from callagent.testing.in_process import InProcessPool
from callagent.testing.virtual_time import run
from tests.agents.driving import replied, started

ROOT = Path(__file__).parents[1]
SATURDAY = datetime(2026, 11, 21, 12, tzinfo=UTC)
STATUS = "I want to check the status of my order"
NUMBER = "the order number is eight four two seven six"
PERSON = "can I speak to a real person"
FRIDAY = "how about friday morning around ten"
GOODBYE = "that's everything thank you goodbye"
HOURS = "what are your opening hours on saturday"
LOST = "the package never arrived and I want my money back"
REPEAT = "could you repeat that please I didn't catch it"
MISSED = "Parcel 84276 is at our harbour depot. Nobody was in when we called. Shall I book a new delivery day?"


@dataclass(slots=True)
class Walk:
    """A call as far as it has gone."""

    agent: Agent
    metrics: list[tuple[str, Any]]
    actions: list[Action] = field(default_factory=list)
    """Of the last turn."""

    async def begin(self) -> str:
        return await self._take(await started(self.agent))

    async def says(self, *turns: str) -> str:
        """The caller's turns, one after the other; what the agent says to the last."""
        answer = ""
        for text in turns:
            answer = await self.takes(CallerTurn(text))
        return answer

    async def takes(self, turn: CallerTurn | HandoffFailed) -> str:
        assert not isinstance(self.actions[-1], Handoff | HangUp), "the call is over"
        return await self._take(await replied(self.agent, turn))

    async def hangs_up(self) -> AgentRecord:
        await self.agent.end(EndReason.CALLER_HANGUP, 1)
        await self.agent.close()
        return self.agent.record()

    @property
    def last(self) -> Action:
        return self.actions[-1]

    @property
    def functions(self) -> list[str]:
        assert not [action.error for action in self.actions if isinstance(action, FunctionEnded) and action.error]
        return [action.name for action in self.actions if isinstance(action, FunctionEnded)]

    @property
    def step(self) -> str | None:
        entered = [action.step for action in self.actions if isinstance(action, StepEntered)]
        return entered[-1] if entered else None

    def metric(self, name: str) -> Any:
        return dict(self.metrics).get(name)

    async def _take(self, actions: list[Action]) -> str:
        self.actions = actions
        assert isinstance(self.last, Listen | Handoff | HangUp)
        return " ".join(action.text for action in actions if isinstance(action, Say))


Script = Callable[[Walk], Awaitable[None]]


async def open_call(model: LanguageModel, headers: Mapping[str, str], caller: str | None) -> Walk:
    metrics: list[tuple[str, Any]] = []

    async def write_metric(name: str, value: Any) -> None:
        metrics.append((name, value))

    project = load_flow_project(ROOT, model, InProcessPool(project_runtime(ROOT)), FlowSettings(at=SATURDAY))
    info = CallInfo("call-1", "inbound", caller, "+12065550100", "text", SATURDAY, headers)
    return Walk(await project.open(info, write_metric), metrics)


def walk(
    script: Script,
    model: LanguageModel | None = None,
    headers: Mapping[str, str] | None = None,
    caller: str | None = None,
) -> None:
    """Run `script(call)` on a virtual clock, from behind the greeting."""

    async def main() -> None:
        call = await open_call(model or RulesModel(), headers or {}, caller)
        assert await call.begin() == "Harbour Parcel, hello. How can I help you?"
        await script(call)
        await call.agent.close()

    run(main())


def test_caller_books_a_new_day_with_the_embedded_model() -> None:
    async def script(call: Walk) -> None:
        assert await call.says(STATUS) == (
            "What is your tracking number? Say the five digits, or key them in and press pound."
        )
        assert await call.says(NUMBER) == MISSED
        assert call.functions == ["tracking_number_given", "route_by_status"]
        assert await call.says("yes") == "Which day suits you, and morning or afternoon?"
        assert await call.says(FRIDAY) == "That is Friday, November 27, in the morning. Is that right?"
        assert await call.says("yeah that's right") == (
            "Your delivery is booked for Friday, November 27, in the morning. Is there anything else?"
        )
        assert await call.says(GOODBYE) == "Thank you for calling Harbour Parcel. Goodbye."
        assert isinstance(call.last, HangUp)
        record = await call.hangs_up()
        assert record.entities["delivery_date"] == "2026-11-27"
        assert call.metric("BOOKED_DAY") == "2026-11-27"
        assert call.metric("OUTCOME") == "booked"

    walk(script)


@pytest.mark.parametrize(
    "heard",
    [
        ["The order number is 8 4 2 7 6", "How about Friday morning around 10?", "Yeah, that's right",
         "That's everything. Thank you. Goodbye."],
        ["The order number is 84276.", "How about Friday morning or on 10?", "Yes.", "No thanks."],
        ["8-4-2-7-6.", "Friday morning.", "Sure go ahead.", "Nope, that's everything."],
    ],
)  # fmt: skip
def test_words_as_a_recogniser_writes_them_lead_to_the_booking(heard: list[str]) -> None:
    async def script(call: Walk) -> None:
        assert await call.says(*heard) == "Thank you for calling Harbour Parcel. Goodbye."
        await call.hangs_up()
        assert call.metric("BOOKED_DAY") == "2026-11-27"

    walk(script)


TO_STEPS = {
    "Welcome": [],
    "Tracking number": [STATUS],
    "Delivery day": [STATUS, NUMBER],
    "Confirm day": [NUMBER, FRIDAY],
    "Anything else": [NUMBER, "no thanks"],
}


@pytest.mark.parametrize("turns", TO_STEPS.values(), ids=TO_STEPS)
def test_a_person_is_reached_from_every_step(turns: list[str]) -> None:
    async def script(call: Walk) -> None:
        await call.says(*turns)
        assert await call.says(PERSON) == "I will put you through to a colleague. One moment."
        assert isinstance(call.last, Handoff)
        assert (call.last.destination, call.last.method, call.last.number) == ("support", "refer", "+12065550123")
        assert call.last.headers == {"X-Reason": "caller asked for a person"}
        await call.hangs_up()
        assert call.metric("HANDOFF_TO") == "support"
        assert call.metric("OUTCOME") == "transferred"

    walk(script)


@pytest.mark.parametrize("turns", TO_STEPS.values(), ids=TO_STEPS)
def test_goodbye_ends_the_call_from_every_step(turns: list[str]) -> None:
    async def script(call: Walk) -> None:
        await call.says(*turns)
        assert await call.says(GOODBYE) == "Thank you for calling Harbour Parcel. Goodbye."
        assert isinstance(call.last, HangUp)

    walk(script)


@pytest.mark.parametrize("turns", TO_STEPS.values(), ids=TO_STEPS)
def test_questions_are_answered_in_every_step_and_the_call_goes_on(turns: list[str]) -> None:
    async def script(call: Walk) -> None:
        await call.says(*turns)
        answer = await call.says(HOURS)
        assert "from nine to one on Saturdays" in answer
        assert answer.endswith((".", "?"))
        assert await call.says(REPEAT) == answer
        assert "six dollars" in await call.says("how much does it cost to send a parcel")

    walk(script)


@pytest.mark.parametrize("turns", TO_STEPS.values(), ids=TO_STEPS)
def test_lost_parcel_goes_to_the_claims_desk_by_headers(turns: list[str]) -> None:
    async def script(call: Walk) -> None:
        await call.says(*turns)
        assert (await call.says(LOST)).startswith("I am sorry")
        assert isinstance(call.last, Handoff)
        number = "84276" if NUMBER in turns else "unknown"
        assert (call.last.destination, call.last.method) == ("claims", "bye")
        assert call.last.headers == {"X-Queue": "claims", "X-Tracking-Number": number}

    walk(script)


def test_slow_look_up_is_covered_by_fillers() -> None:
    async def script(call: Walk) -> None:
        before = asyncio.get_running_loop().time()
        await call.says(NUMBER)
        assert asyncio.get_running_loop().time() - before == pytest.approx(3)
        started = next(action for action in call.actions if isinstance(action, FunctionStarted))
        assert started.latency is not None
        assert started.latency.delay_before_start == 0.5
        assert started.latency.responses[0].text == "One moment, I am looking for your parcel."

    walk(script)


@pytest.mark.parametrize("step", ["Welcome", "Tracking number", "Anything else"])
def test_number_may_be_keyed_in(step: str) -> None:
    async def script(call: Walk) -> None:
        await call.says(*TO_STEPS[step])
        assert isinstance(call.last, Listen)
        digits = call.last.settings.digits
        assert digits is not None
        assert (digits.max_digits, digits.end_key, digits.while_speaking) == (5, "#", True)
        assert await call.takes(CallerTurn(digits="84276")) == MISSED

    walk(script)


def test_caller_without_a_number_reaches_a_person() -> None:
    async def script(call: Walk) -> None:
        await call.says(STATUS)
        assert await call.says("I don't have the number") == "I will put you through to a colleague. One moment."
        assert call.metric("NUMBER_UNAVAILABLE") is True

    walk(script)


def test_other_parcels_need_no_new_day() -> None:
    async def script(call: Walk) -> None:
        assert await call.says("it is five five oh one four") == (
            "I found parcel 55014. It left our sorting centre this morning and arrives tomorrow. "
            "Is there anything else?"
        )
        assert await call.says("no thanks") == "Thank you for calling Harbour Parcel. Goodbye."
        await call.hangs_up()
        assert call.metric("PARCEL_STATUS") == "on_its_way"
        assert call.metric("OUTCOME") == "status_given"

    walk(script)


def test_number_that_is_too_short_is_asked_again() -> None:
    async def script(call: Walk) -> None:
        answer = await call.says("eight four two")
        assert answer == "A tracking number has five digits, and I heard 3. Please give me all five."
        assert call.step == "Tracking number"

    walk(script)


def test_unknown_number_leads_to_a_person_at_last() -> None:
    async def script(call: Walk) -> None:
        assert (await call.says("nine nine nine nine nine")).startswith("I cannot find parcel 99999.")
        await call.says("nine nine nine nine eight")
        assert await call.says("nine nine nine nine seven") == "I cannot find your parcel. A colleague will help you."
        assert isinstance(call.last, Handoff)
        assert call.last.reason == "parcel_not_found"
        await call.hangs_up()
        assert call.metric("TRACKING_ATTEMPTS") == 3

    walk(script)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("next tuesday at three p m", "That is Tuesday, November 24, in the afternoon. Is that right?"),
        ("Friday.", "That is Friday, November 27. Is that right?"),
        ("tomorrow afternoon would be great", "We do not deliver on Sundays. Which other day suits you?"),
        ("the fourteenth of march", "I can book a day in the next two weeks. Which day suits you?"),
        ("in the morning", "Which day suits you, and morning or afternoon?"),
        ("my bicycle", "I did not get the day. You can say, for example, Friday morning."),
        ("", "Which day suits you, and morning or afternoon?"),
    ],
)
def test_day_is_understood_and_checked(said: str, answer: str) -> None:
    async def script(call: Walk) -> None:
        assert await call.says(NUMBER, said) == answer

    walk(script)


def test_day_that_was_misunderstood_is_chosen_again() -> None:
    async def script(call: Walk) -> None:
        await call.says(NUMBER, FRIDAY)
        assert await call.says("nope that's not correct") == "Which day suits you, and morning or afternoon?"
        assert await call.says("next tuesday at three p m") == (
            "That is Tuesday, November 24, in the afternoon. Is that right?"
        )
        await call.says("yes")
        assert call.functions == ["day_confirmed"]
        await call.hangs_up()
        assert call.metric("BOOKED_DAY") == "2026-11-24"

    walk(script)


def test_another_day_may_be_named_with_the_no() -> None:
    async def script(call: Walk) -> None:
        await call.says(NUMBER, FRIDAY)
        assert await call.says("no, next tuesday at three p m") == (
            "That is Tuesday, November 24, in the afternoon. Is that right?"
        )

    walk(script)


def test_region_of_the_trunk_changes_what_is_said() -> None:
    async def script(call: Walk) -> None:
        assert "at our ferry terminal" in await call.says(NUMBER)
        assert await call.says("friday evening") == ("We do not deliver in the evening there. Morning or afternoon?")
        record = await call.hangs_up()
        assert record.variant == "islands"

    walk(script, headers={"X-Region": "islands"}, caller="+12065550142")


def test_call_without_a_request_has_its_metrics() -> None:
    async def script(call: Walk) -> None:
        await call.hangs_up()
        assert call.metrics == [
            ("CALLER_WITHHELD", True), ("REGION", "none"), ("OUTCOME", "no_request"), ("TRACKING_ATTEMPTS", 0),
            ("LAST_STEP", "Welcome"),
        ]  # fmt: skip

    walk(script)


def test_silence_is_asked_into_and_then_the_call_ends() -> None:
    async def script(call: Walk) -> None:
        assert await call.says("", "", "") == "What can I do for you?"
        assert await call.says("") == "I cannot hear you, so I will end the call now. Goodbye."
        assert call.last == HangUp(EndReason.SILENCE)

    walk(script)


def test_transfer_that_did_not_happen_is_told() -> None:
    async def script(call: Walk) -> None:
        await call.says(PERSON)
        call.actions = [Listen()]
        answer = await call.takes(HandoffFailed("support", "busy"))
        assert answer == "I am sorry, I could not put you through. What can I do for you?"
        assert await call.says(NUMBER) == MISSED

    walk(script)


def test_scripted_model_books_transfers_and_hangs_up() -> None:
    day = {"delivery_date": "2026-11-27", "delivery_window": "morning"}
    number = {"name": "tracking_number_given", "arguments": {"tracking_number": "84276"}}

    async def books(call: Walk) -> None:
        assert await call.says("where is parcel 84276") == MISSED
        assert await call.says("Friday morning, please.") == "Friday, November 27, in the morning?"
        assert (await call.says("Yes.")).startswith("Your delivery is booked for Friday, November 27, in the morning.")
        assert await call.says("That is all.") == "Thank you for calling Harbour Parcel. Goodbye."
        assert isinstance(call.last, HangUp)

    walk(
        books,
        ScriptedModel.from_entries(
            {
                "expect": {"tools": ["tracking_number_given", "speak_to_person"], "system": "2026"},
                "calls": [number],
            },
            {"expect": {"tools": ["save_entities"]}, "calls": [{"name": "save_entities", "arguments": day}]},
            {"expect": {"tools": ["condition_day_named"]}, "calls": [{"name": "condition_day_named"}]},
            {"expect": {"system": "That is Friday, November 27"}, "text": "Friday, November 27, in the morning?"},
            {"calls": [{"name": "day_confirmed"}]},
            {"calls": [{"name": "nothing_else"}]},
        ),
    )

    async def transfers(call: Walk) -> None:
        await call.says("I want a human.")
        assert isinstance(call.last, Handoff)

    walk(transfers, ScriptedModel.from_entries({"calls": [{"name": "speak_to_person"}]}))


def test_it_is_a_valid_project_without_warnings() -> None:
    report = check_project(ROOT)
    assert not report.errors
    assert not report.warnings
