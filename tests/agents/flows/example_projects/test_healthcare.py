"""A clinic's project: identity check, cancellation, booking, text message, out of hours."""

from __future__ import annotations

from tests.agents.flows.example_projects.support import Chat, call, calls, needs_projects, text

pytestmark = needs_projects
PROJECT = "healthcare-appointment-scheduling"
MONDAY, SUNDAY = "2026-03-02T15:00:00", "2026-03-01T15:00:00"
JANE = "+15550001234"

IDENTIFIED = (
    call("caller_phone_confirmed"),
    text("What is your date of birth?"),
    calls(call("save_entities", date_of_birth="1985-03-15"), call("condition_date_of_birth_collected")),
    text("To confirm, was that March 15th, 1985?"),
    call("dob_confirmed"),
    text("Could you tell me the name on the account?"),
    calls(call("save_entities", full_name="Jane Smith"), call("condition_name_collected")),
)
IDENTIFYING = ("yes", "March fifteenth 1985", "yes", "Jane Smith")


def test_a_verified_patient_cancels(chat: Chat):
    script = (
        call("start_cancellation_flow"),
        text("Is the number you're calling from the one on your account?"),
        *IDENTIFIED,
        text("match"),
        call("suggest_next_cancel_appointment"),
        text("Is it that one?"),
        call("disambiguate"),
        text("Which day?"),
    )
    says = ("I want to cancel my appointment", *IDENTIFYING, "I don't know the date", "yes")
    trace = chat.play(PROJECT, says, script, "--caller", JANE, "--at", MONDAY)
    assert trace.errors == []
    assert trace.steps[1:6] == [
        ("IDNV", "Check Phone Number"),
        ("IDNV", "Collect Date of Birth"),
        ("IDNV", "Confirm Date of Birth"),
        ("IDNV", "Collect Name"),
        ("Cancel Flow", "Resolve Appointment"),
    ]
    assert trace.functions(1) == ["start_cancellation_flow", "idnv_entry"]
    assert trace.functions(2) == ["caller_phone_confirmed", "save_caller_phone_and_lookup"]
    assert trace.functions(4) == ["dob_confirmed", "match_dob_and_identify"]
    assert trace.functions(5) == ["match_name_to_account", "cancel_entry"]
    assert trace.turns[5]["agent"] == ["Thanks for verifying your identity. Let me pull up the details."]
    assert trace.turns[4]["fillers"][0] == "One moment."
    assert trace.functions(6) == ["suggest_next_cancel_appointment"]
    for metric in ("CANCEL_FLOW_INITIATED", "IDNV_DOB_CONFIRMED", "IDNV_NAME_COLLECTED", "IDNV_IDENTIFIED"):
        assert trace.metric(metric.replace("IDNV_NAME", "IDNV_FLOW_NAME")) == [True]
    assert trace.record["state"]["identified_patient"]["id"] == "MOCK-P001"
    assert trace.metric("LAST_EVENT") == ["Cancel Flow | Resolve Appointment"]
    assert trace.record["end_function"] == "done"


def test_the_cancellation_goes_through_to_its_end(chat: Chat):
    """The only upcoming visit of the patient is found by its date, confirmed and cancelled."""
    ask = (call("start_cancellation_flow"), text("Is it this number?"), *IDENTIFIED, text("match"), text("Which one?"))
    says = ("I want to cancel my appointment", *IDENTIFYING, "hm")
    first = chat.play(PROJECT, says, ask, "--caller", JANE)
    when = first.record["state"]["cancel_upcoming_appointments"][0]["appointment_date"]
    year, month, day = when[:10].split("-")
    date = {"day_of_appointment_date": day, "month_of_appointment_date": month, "year_of_appointment_date": year}
    script = (
        *ask[:-1],
        call("cancel_date_of_appointment_given", **date),
        call("user_confirmed_cancel"),
        call("cancel_reason_provided", cancellation_reason="I am away"),
        text("1"),
        call("goodbye_and_hangup"),
    )
    says = ("I want to cancel my appointment", *IDENTIFYING, "that one", "yes", "I am away", "no thanks")
    trace = chat.play(PROJECT, says, script, "--caller", JANE)
    assert trace.errors == []
    assert trace.steps[6:] == [
        ("Cancel Flow", "Confirm Cancellation"),
        ("Cancel Flow", "Collect Cancel Reason"),
        (None, None),
        (None, None),
    ]
    assert "We can cancel that follow-up visit on" in trace.turns[6]["agent"][0]
    assert trace.turns[8]["agent"][0].startswith("I've cancelled that appointment for you.")
    assert trace.metric("CANCEL_FLOW_COMPLETED") == [True]
    assert trace.ended == {"reason": "agent_hangup", "handoff": None}


def test_a_verified_patient_books(chat: Chat):
    script = (
        call("start_booking_flow"),
        text("Is it this number?"),
        *IDENTIFIED,
        text("match"),
        text("Are you an existing patient?"),
        call("caller_is_existing_patient"),
        text("What kind of appointment?"),
        call("appointment_type_confirmed", appointment_type="RECHECK"),
        call("booking_slot_accepted", slot_number="1"),
        call("goodbye_and_hangup"),
    )
    says = ("I need an appointment", *IDENTIFYING, "hello", "I am", "a follow-up", "the first", "no thanks")
    trace = chat.play(PROJECT, says, script, "--caller", JANE)
    assert trace.errors == []
    assert trace.turns[8]["agent"][0].startswith("Alright, I'm seeing")
    assert trace.turns[8]["fillers"] == ["One moment."]
    assert trace.turns[9]["agent"][0].startswith("You're all set! Your appointment is confirmed for")
    assert trace.steps[8] == ("Booking Flow", "Offer Booking Slot")
    assert trace.steps[9] == (None, None)
    assert trace.metric("BOOKING_FLOW_TYPE_CONFIRMED") == ["recheck"]
    assert trace.metric("BOOKING_FLOW_APPOINTMENT_BOOKED") == [True]


def test_an_identity_check_that_fails_hands_the_call_off(chat: Chat):
    script = (
        call("start_cancellation_flow"),
        text("Is it this number?"),
        *IDENTIFIED,
        text("no_match"),
        call("match_spelled_name_to_account"),
        text("no_match"),
    )
    says = ("I want to cancel my appointment", *IDENTIFYING, "M A R Y")
    trace = chat.play(PROJECT, says, script, "--caller", JANE, "--at", MONDAY)
    assert trace.errors == []
    assert trace.steps[5] == ("IDNV", "Collect Spelled Name")
    assert "Could you spell your first and last name" in trace.turns[5]["agent"][0]
    assert trace.turns[6]["agent"] == [
        "I still wasn't able to match that to the account. Let me transfer you to someone who can help."
    ]
    handoff = trace.ended["handoff"]
    assert (trace.ended["reason"], handoff["destination"]) == ("handoff", "DEFAULT")
    assert (handoff["reason"], handoff["method"], handoff["number"]) == ("IDNV_NAME_NO_MATCH", "refer", "+1234567890")
    assert trace.metric("HANDOFF_REASON")[0] == "IDNV_NAME_NO_MATCH"
    assert trace.record["handoff"] is True


def test_a_caller_whose_number_is_withheld_is_asked_for_one_with_key_presses(chat: Chat):
    script = (call("start_booking_flow"), text("Which number?"))
    trace = chat.play(PROJECT, ["an appointment"], script)
    assert trace.steps[1] == ("IDNV", "Collect Phone Number")
    assert trace.turns[1]["listen"]["digits"]["max_digits"] == 10
    # 3000 in the project is meant as milliseconds.
    assert trace.turns[1]["listen"]["digits"]["inter_digit_timeout"] == 3.0
    assert trace.turns[1]["listen"]["digits"]["is_pii"] is True


def test_a_text_message_is_sent(chat: Chat):
    script = (
        call("start_sms_flow", sms_id="clinic_address"),
        call("use_phone_number"),
        call("goodbye_and_hangup"),
    )
    says = ("what is your address", "yes", "no thanks")
    trace = chat.play(PROJECT, says, script, "--caller", JANE, "--env", "live", "--at", MONDAY)
    assert trace.errors == []
    assert trace.turns[1]["agent"] == ["Am I ok to send this to the number you're calling from?"]
    assert trace.steps[1:3] == [("SMS flow", "Confirm This Phone Number"), (None, None)]
    (sms,) = trace.record["messages"]
    assert (sms["to"], sms["from"], sms["template"]) == (JANE, "+15550001234", "clinic_address")
    assert "123 Main Street" in sms["text"]
    assert trace.metric("SMS_SENT") == [True]
    assert trace.metric("QA") == ["address_and_directions"]


def test_out_of_hours_the_agent_is_told_that_the_clinic_is_closed(chat: Chat):
    closed = {"text": "We are closed.", "expect": {"system": r"When True is true, .*closed", "tools": ["handoff"]}}
    trace = chat.play(PROJECT, ["are you open"], [closed], "--at", SUNDAY)
    assert trace.metric("OOH") == [None]
    assert trace.record["state"]["datetime_now_readable"] == "Sunday 01 March 2026"
    open_ = {"text": "We are open.", "expect": {"system": "When False is true"}}
    trace = chat.play(PROJECT, ["are you open"], [open_], "--at", MONDAY)
    assert trace.metric("OOH") == []


def test_a_caller_who_needs_time_gets_it(chat: Chat):
    script = (call("user_needs_time"), call("user_needs_time"), text("There you are."))
    trace = chat.play(PROJECT, ["hang on", "", "back"], script, "--at", MONDAY)
    assert trace.turns[1]["agent"] == ["Sure, let me know when you're ready."]
    assert trace.turns[1]["listen"]["no_input_timeout"] == 20
    assert trace.turns[2]["agent"] == []
    assert trace.turns[2]["listen"]["no_input_timeout"] == 20
