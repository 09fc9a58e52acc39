from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models import ModelSettings
from callagent.models.rules import RulesModel
from callagent.models.rules.choice import Call, Choice, Keywords, Speak, choose, content_words
from callagent.models.rules.situation import Situation

TODAY = date(2026, 11, 21)
NUMBER_STEP = "Get the number.\nSay: What is your number?\nOtherwise say: I need five digits."
CONFIRM_STEP = "Say: Is that right?"
DAY_STEP = (
    "Say: Which day?\nOtherwise say: I did not get the day.\n- day (date, not collected yet): The day\n"
    "- condition_named: Named. The caller has named the day (needs day)"
)
TOPIC = "\nfaq_id: Opening hours\nfaq_example_questions: When are you open?\nfaq_description: {}\nfaq_instructions: "


def tool(name: str, description: str = "", /, required: bool = True, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties) if required else []}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


NUMBER_GIVEN = tool("number_given", "The caller gives the number", number={"type": "string"})
STATUS = tool("status_wanted", "The caller wants to know where a parcel is: the status of an order")
PERSON = tool("speak_to_person", "The caller asks to speak to a person")
CLAIM = tool("open_claim", "Something never arrived, or the caller wants a refund", reason={"type": "string"})
GOODBYE = tool("say_goodbye", "The caller says goodbye, that is everything")
CONFIRMED = tool("day_confirmed", "The caller agrees: says yes")
REJECTED = tool("day_rejected", "The caller does not agree: says no")
SAVE = tool("save_entities", "Save what was given", required=False, day={"type": "string", "description": "The day"})
NAMED = tool("condition_named", "Named. The caller has named the day")
DECLINED = tool("condition_declined", "Declined. The caller declines")
RULES = (PERSON, CLAIM, GOODBYE)


def answer(step: str, *dialogue: dict[str, Any], tools: tuple[dict[str, Any], ...] = RULES, head: str = "") -> Choice:
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"You help.{head}"}, *dialogue]
    if step:
        messages.append({"role": "system", "content": step})
    return choose(Situation.read(messages), tools, TODAY)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def agent(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def result(name: str, content: str = "", **arguments: object) -> tuple[dict[str, Any], dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }
    return calls, {"role": "tool", "tool_call_id": name, "content": content}


def test_entering_a_step_says_its_line() -> None:
    assert answer(NUMBER_STEP, user("where is it"), *result("status_wanted")) == Speak("What is your number?")
    assert answer(NUMBER_STEP, agent("Hello.")) == Speak("What is your number?")


def test_silence_is_asked_again() -> None:
    assert answer(NUMBER_STEP, user("The user is silent.")) == Speak("What is your number?")
    assert answer("", user("")) == Speak("Are you still there?")


def test_words_that_lead_to_nothing_are_answered_with_the_other_line() -> None:
    assert answer(NUMBER_STEP, user("my internet is down")) == Speak("I need five digits.")
    assert answer(CONFIRM_STEP, user("my internet is down")) == Speak("Is that right?")
    assert isinstance(answer("", user("my internet is down")), Speak)


def test_repeat_request_repeats_the_last_words() -> None:
    utterance = [agent("Your parcel is in Leith."), user("could you repeat that please I didn't catch it")]
    assert answer(NUMBER_STEP, *utterance) == Speak("Your parcel is in Leith.")
    assert answer(NUMBER_STEP, utterance[1]) == Speak("What is your number?")
    assert answer(NUMBER_STEP, agent("What is your…"), utterance[1]) == Speak("What is your number?")


@pytest.mark.parametrize(
    ("utterance", "call"),
    [
        ("I want to check the status of my order", Call("status_wanted")),
        ("the order number is eight four two seven six", Call("number_given", {"number": "84276"})),
        ("can I speak to a real person", Call("speak_to_person")),
        ("that's everything thank you goodbye", Call("say_goodbye")),
        (
            "the package never arrived and I want my money back",
            Call("open_claim", {"reason": "the package never arrived and I want my money back"}),
        ),
    ],
)
def test_function_is_chosen_by_what_was_said(utterance: str, call: Call) -> None:
    assert answer(NUMBER_STEP, user(utterance), tools=(STATUS, NUMBER_GIVEN, *RULES)) == call


def test_function_is_not_called_without_what_it_requires() -> None:
    assert answer(NUMBER_STEP, user("I have the number here"), tools=(NUMBER_GIVEN,)) == Speak("I need five digits.")


def test_yes_and_no_choose_between_two_functions() -> None:
    tools = (CONFIRMED, REJECTED, *RULES)
    assert answer(CONFIRM_STEP, user("yeah that's right"), tools=tools) == Call("day_confirmed")
    assert answer(CONFIRM_STEP, user("nope that's not correct"), tools=tools) == Call("day_rejected")
    assert answer(CONFIRM_STEP, user("yes, put me through to a person"), tools=(PERSON,)) == Call("speak_to_person")


def test_what_goes_with_a_yes_or_no_may_ask_for_more() -> None:
    tools = (CONFIRMED, REJECTED, *RULES)
    assert answer(CONFIRM_STEP, user("no, I want to speak to a person"), tools=tools) == Call("speak_to_person")
    assert answer(CONFIRM_STEP, user("okay, say goodbye then"), tools=tools) == Call("say_goodbye")
    assert answer(CONFIRM_STEP, user("yes, book it"), tools=tools) == Call("day_confirmed")


def test_description_that_forbids_is_no_invitation() -> None:
    wait = tool("wait", "[Talk] Call when the caller needs time. Do not call it if the caller wants a person.")
    assert answer(NUMBER_STEP, user("can I speak to a real person"), tools=(wait,)) == Speak("I need five digits.")


def test_topic_may_name_a_function() -> None:
    head = TOPIC.format("") + "Call status_wanted at once."
    assert answer(NUMBER_STEP, user("when are you open"), tools=(STATUS, *RULES), head=head) == Call("status_wanted")


def test_yes_that_answers_nothing_is_asked_on() -> None:
    assert answer(NUMBER_STEP, user("yes please")) == Speak("What is your number?")


def test_default_step_saves_and_goes_on_in_the_same_turn() -> None:
    utterance = [agent("Shall I book a new day?"), user("how about friday")]
    saved = answer(DAY_STEP, *utterance, tools=(SAVE, DECLINED, *RULES))
    assert saved == Call("save_entities", {"day": "2026-11-27"})
    after = [*utterance, *result("save_entities", "Saved.", day="2026-11-27")]
    assert answer(DAY_STEP, *after, tools=(SAVE, NAMED, DECLINED, *RULES)) == Call("condition_named")


def test_default_step_asks_for_what_is_missing() -> None:
    tools = (SAVE, DECLINED, *RULES)
    assert answer(DAY_STEP, user("yes please"), tools=tools) == Speak("Which day?")
    assert answer(DAY_STEP, user("no thanks"), tools=tools) == Call("condition_declined")
    wrong = result("save_entities", "day: that is not a date", day="x")
    assert answer(DAY_STEP, user("friday"), *wrong, tools=tools) == Speak("I did not get the day.")


def test_day_said_while_rejecting_another_is_saved_in_the_step_it_leads_to() -> None:
    utterance = [user("no, next tuesday"), *result("day_rejected")]
    assert answer(DAY_STEP, *utterance, tools=(SAVE, *RULES)) == Call("save_entities", {"day": "2026-11-24"})


def test_default_step_that_asks_for_words_takes_them() -> None:
    step = "Say: What is it about?\n- {} ({}, not collected yet): What the call is about"
    about, named = step.format("about", "free_text"), step.format("who", "name_config")
    assert answer(about, user("my internet is down"), tools=(SAVE, *RULES)) == Call(
        "save_entities", {"about": "my internet is down"}
    )
    assert answer(about, user("can I speak to a person"), tools=(SAVE, *RULES)) == Call("speak_to_person")
    assert answer(named, user("sarah johnson"), tools=(SAVE, *RULES)) == Call("save_entities", {"who": "Sarah Johnson"})
    assert answer(about, user("my internet is down")) == Speak("What is it about?")


def test_date_in_the_prompt_counts() -> None:
    step = "Today is Monday 2027-03-01.\n" + DAY_STEP
    assert answer(step, user("tomorrow"), tools=(SAVE,)) == Call("save_entities", {"day": "2027-03-02"})


def test_topic_answers_a_question_and_the_step_goes_on() -> None:
    head = TOPIC.format("We are open from nine to one on Saturdays. On Sundays we are closed.")
    expected = "We are open from nine to one on Saturdays. On Sundays we are closed. Which day?"
    assert answer(DAY_STEP, user("what are your opening hours on saturday"), tools=(SAVE,), head=head) == Speak(
        expected
    )


def test_topic_that_does_not_fit_is_not_told() -> None:
    head = TOPIC.format("We are open from nine to one.")
    assert answer(NUMBER_STEP, user("can I speak to a real person"), head=head) == Call("speak_to_person")
    assert answer(NUMBER_STEP, user("my internet is down"), head=head) == Speak("I need five digits.")


def test_words_of_a_result_are_spoken() -> None:
    assert answer(NUMBER_STEP, user("a"), *result("f", "found\nSay: It is here.")) == Speak("It is here.")
    assert answer("", user("a"), *result("f", "Your table is booked.")) == Speak("Your table is booked.")


@pytest.mark.parametrize(
    "content",
    [
        "Ask for the number.",
        "We verify first. Ask for the date.",
        "Tell us about the caller.",
        '{"a": 1}',
        "Error: KeyError.",
        "ok",
        "",
    ],
)
def test_instructions_and_data_are_not_spoken(content: str) -> None:
    assert answer(NUMBER_STEP, user("a"), *result("f", content)) == Speak("What is your number?")
    assert answer("", user("a"), *result("f", content)) == Speak("How can I help you?")


def test_words_that_left_a_flow_call_what_the_rules_offer() -> None:
    utterance = [user("that's everything thank you goodbye"), *result("condition_goodbye")]
    assert answer("", *utterance) == Call("say_goodbye")
    assert answer("", *utterance, *result("say_goodbye")) == Speak("How can I help you?")


def test_things_said_on_the_side_are_answered() -> None:
    assert answer(NUMBER_STEP, user("Hold on, let me look.")) == Speak("Of course, take your time.")
    assert answer(NUMBER_STEP, user("Are you a robot?")) == Speak("I am an automated assistant.")


def test_another_day_instead_of_a_no() -> None:
    rejected = tool("day_rejected", "The caller does not agree: says no, wants another day")
    assert answer(CONFIRM_STEP, user("Thursday would be better"), tools=(CONFIRMED, rejected)) == Call("day_rejected")
    assert answer(CONFIRM_STEP, user("Thursday would be better"), tools=(CONFIRMED, REJECTED)) == Speak(
        "Is that right?"
    )


def test_failed_transfer_is_told() -> None:
    note = {"role": "system", "content": "The transfer to support did not happen: busy."}
    utterance = [user("a person please"), *result("speak_to_person"), agent("One moment."), note]
    assert answer(NUMBER_STEP, *utterance) == Speak("I am sorry, I could not put you through. What is your number?")


TEXTS = st.one_of(
    st.text(max_size=40), st.sampled_from([NUMBER_STEP, DAY_STEP, TOPIC, "friday at ten", "yes", "{", "$1"])
)
MESSAGES = st.one_of(
    st.builds(
        lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user", "assistant"]), TEXTS
    ),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "1", "content": text}, TEXTS),
    st.builds(lambda text: result("save_entities")[0] | {"content": text}, TEXTS),
)


@given(st.lists(MESSAGES, max_size=8))
def test_every_conversation_has_an_answer(messages: list[dict[str, Any]]) -> None:
    chosen = choose(Situation.read(messages), (SAVE, NAMED, NUMBER_GIVEN, CONFIRMED, REJECTED, *RULES), TODAY)
    assert isinstance(chosen, Call) or chosen.text.strip()


async def test_model_answers_with_text_or_a_call() -> None:
    model = RulesModel(today=lambda: TODAY)
    messages = [{"role": "system", "content": "You help."}, user("tomorrow")]
    deltas = [delta async for delta in model.stream(messages, [SAVE], ModelSettings())]
    assert deltas[0].tool_call is not None
    assert json.loads(deltas[0].tool_call.arguments) == {"day": "2026-11-22"}
    deltas = [delta async for delta in model.stream([user("hm")], [], ModelSettings())]
    assert deltas[0].text


TOOLS = Keywords(
    [
        "parcel_status_wanted: The caller wants to know where a parcel is: check the status of an order, track it.",
        "speak_to_person: The caller asks to speak to a person: a human, an agent.",
        "open_claim: The parcel never arrived, is lost or damaged, or the caller wants a refund.",
        "say_goodbye: The caller says goodbye: bye, that is everything.",
    ]
)


def best(utterance: str) -> int | None:
    scores = TOOLS.scores(utterance)
    return scores.index(max(scores)) if max(scores) > 0 else None


def test_the_description_that_shares_most_wins() -> None:
    assert best("I want to check the status of my order") == 0
    assert best("where is my package") == 0
    assert best("can you tell me where my delivery is") == 0
    assert best("can I speak to a real person") == 1
    assert best("get me an operator") == 1
    assert best("the package never arrived and I want my money back") == 2
    assert best("that's everything thank you goodbye") == 3


def test_words_that_mean_nothing_here_choose_nothing() -> None:
    assert best("my internet has been down since this morning") is None
    assert best("") is None
    assert best("eight four two seven 6") is None
    assert best("and so on and so on") is None


def test_endings_and_synonyms_are_folded() -> None:
    assert content_words("arriving packages") == content_words("arrived parcel")
    assert content_words("shipping") == content_words("ships")


@given(st.text(max_size=80), st.lists(st.text(max_size=40), max_size=4))
def test_scores_are_between_none_and_all(utterance: str, descriptions: list[str]) -> None:
    assert all(0 <= score <= 1.000001 for score in Keywords(descriptions).scores(utterance))
