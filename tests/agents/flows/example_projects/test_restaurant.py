"""A restaurant's project: variants, a booking, phrase filters that re-prompt or hang up, a text message."""

from __future__ import annotations

import pytest

from tests.agents.flows.example_projects.support import Chat, call, needs_projects, text

pytestmark = needs_projects
PROJECT = "restaurant-table-booking"
AT = "2026-03-02T18:00:00"
CALLER = ("--caller", "+15550009999")
DATE = "2026-03-03"
NAME = {"first_name": "Ada", "last_name": "Lovelace"}
SLOT = {"date": DATE, "time": "19:00", "party_size": 2, "selected_table_type": "default"}
WHEN = {**SLOT, "selected_experience_ids": "[]"}


def test_a_table_is_booked(chat: Chat):
    script = (
        call("start_make_booking", party_size=2, date=DATE, user_want_to_make_multiple_bookings=False),
        call("start_checking_availability", **WHEN),
        text("A table for two tomorrow at seven is free. Shall I take it?"),
        call("temporarily_lock_slot", **SLOT),
        text("What is your name?"),
        call("customer_name_given", **NAME),
        # The project asks two models at once.
        text("{}"),
        text("{}"),
        text("How do you spell Ada?"),
        call("customer_name_given", **NAME),
        text("And Lovelace?"),
        call("customer_name_given", **NAME),
        text("{}"),
        text("{}"),
        text("Is the number you call from fine?"),
        call("save_phone_number_and_move_on", phone_number="5550009999"),
        text("Any notes?"),
        call("finalize_booking", booking_notes="-", dietary_requirements="false"),
        text("Booked. Anything else?"),
        call("ask_csat"),
    )
    says = ("a table for two tomorrow at seven", "yes", "Ada Lovelace", "A D A", "L O V E L A C E", "yes", "no", "no")
    trace = chat.play(PROJECT, says, script, *CALLER, "--at", AT)
    assert trace.errors == []
    assert trace.functions(1) == ["start_make_booking", "start_checking_availability"]
    assert trace.turns[1]["fillers"] == ["Let me just check what space we have..."]
    assert [step for _, step in trace.steps[1:]] == [
        "Check availability - with table type",
        "Collect Customer Name",
        "Collect Customer Name",
        "Collect Customer Name",
        "Should use callers phone number",
        "Final details",
        None,
        None,
    ]
    assert trace.functions(7) == ["finalize_booking"]
    assert trace.metric("SUCCESSFUL_BOOKING_DATE") == ["2026/03/03"]
    assert trace.metric("SUCCESSFUL_BOOKING_COVERS") == [2]
    assert trace.metric("RESTAURANT_NAME") == ["Poly Bistro Downtown"]
    assert trace.turns[8]["agent"] == ["Enjoy the rest of your day! Goodbye!"]
    assert trace.ended == {"reason": "agent_hangup", "handoff": None}


def test_while_booking_the_agent_is_not_interrupted(chat: Chat):
    """The project turns barge-in off in this flow."""
    script = (call("start_make_booking", party_size=2, date="-"), text("When?"))
    trace = chat.play(PROJECT, ["a table"], script, *CALLER, "--at", AT)
    assert trace.errors == []
    assert trace.steps[1] == ("make_booking", "Collect booking info")


def test_the_goodbye_filter_says_goodbye_and_hangs_up(chat: Chat):
    trace = chat.play(PROJECT, ["that is all"], [text("Have a nice day. Goodbye and more words.")], "--at", AT)
    assert trace.turns[1]["agent"] == ["Have a nice day. Goodbye"]
    assert trace.functions(1) == ["hangup"]
    assert trace.ended == {"reason": "agent_hangup", "handoff": None}


def test_a_filter_that_re_prompts_takes_the_words_back(chat: Chat):
    script = (text("Sure. Let me check that for you."), text("What day would you like?"))
    trace = chat.play(PROJECT, ["a table"], script, "--at", AT)
    assert trace.turns[1]["agent"] == ["Sure.", "What day would you like?"]
    assert trace.functions(1) == ["handle_hallucinated_tool_call"]


def test_a_filter_that_transfers_calls_the_function_without_arguments(chat: Chat):
    script = (text("I'll put you through now."), text("What is it about?"))
    trace = chat.play(PROJECT, ["a person"], script, "--at", AT)
    assert trace.turns[1]["agent"] == ["What is it about?"]
    assert trace.functions(1) == ["transfer_call_no_arg"]


def test_a_text_message_with_the_variants_words_is_sent(chat: Chat):
    script = (
        call("start_sms_flow", template_id="menu"),
        text("Is this number ok?"),
        call("use_caller_number"),
        call("sms_sent_successfully"),
        text("Sent. Anything else?"),
    )
    says = ("text me the menu please", "yes")
    options = (*CALLER, "--at", AT, "--variant", "Poly Bistro Uptown", "--env", "live")
    trace = chat.play(PROJECT, says, script, *options)
    assert trace.errors == []
    assert trace.functions(2) == ["use_caller_number", "sms_sent_successfully"]
    (sms,) = trace.record["messages"]
    assert sms["text"] == "View our full menu: www.example-restaurant.com/uptown/menu"
    assert trace.steps == [(None, None), ("sms_flow", "Ask this number"), (None, None)]
    assert trace.metric("SMS_SENT") == [None]
    assert trace.record["variant_name"] == "Poly Bistro Uptown"


@pytest.mark.parametrize(("at", "closed"), [("2026-03-02T10:00:00", True), ("2026-03-02T20:00:00", False)])
def test_the_start_knows_whether_the_restaurant_is_open(chat: Chat, at: str, closed: bool):
    trace = chat.play(PROJECT, [], [], "--at", at, "--input-file", "/dev/null")
    assert bool(trace.metric("OOH")) is closed
