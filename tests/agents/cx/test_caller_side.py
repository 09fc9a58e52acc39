"""What an app may ask of a call beside words, over SIP: hold audio, notices, keys, silences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agents.cx.format.test_files import tone
from tests.agents.cx.support import write_app
from tests.end_to_end.scripted import Talker, scripts, talker
from tests.end_to_end.server_process import serve

pytestmark = [pytest.mark.end_to_end, pytest.mark.acceptance("formats")]

WAITS = """
    def before_model_callback(callback_context, llm_request):
        said = "".join(part.text or "" for part in callback_context.get_last_user_input())
        if said == "<event>session start</event>":
            return LlmResponse.from_parts([Part.from_text("Hello.")])
        if said == "Where is it?":
            parts = [Part.from_text("One moment."), Part.from_audio("gs://b/hold.wav", cancellable=True)]
            return LlmResponse(content=Content(parts=parts, role="model"), partial=True)
        if said == "And the rules?":
            parts = [Part.from_audio("notice.wav", interruptable=False), Part.from_text("That is all.")]
            return LlmResponse.from_parts(parts)
"""
ENTRY = """
    def before_model_callback(callback_context, llm_request):
        said = "".join(part.text or "" for part in callback_context.get_last_user_input())
        if said == "<event>session start</event>":
            return LlmResponse.from_parts([Part.from_text("Hello.")])
        if said == "My account.":
            return LlmResponse.from_parts([Part.from_customized_response(
                content="Calls are recorded, and nothing that is said before the end of this notice stops it.",
                disable_barge_in=True)])
        if said == "I agree.":
            return LlmResponse.from_parts([Part.from_customized_response(
                content="Enter your number.", enable_dtmf=True, dtmf_finish_digit="*", dtmf_endpointing_timeout=1)])
        if said == "12":
            return LlmResponse.from_parts([Part.from_customized_response(
                content="And your code.", enable_dtmf=True, dtmf_finish_digit="*", dtmf_endpointing_timeout=1)])
        if said == "34#":
            return LlmResponse.from_parts([Part.from_customized_response(
                content="Then the star.", enable_dtmf=True, dtmf_finish_digit="*")])
        return LlmResponse.from_parts([Part.from_text("I heard " + said), Part.from_end_session(reason="done")])
"""
SILENT = """
    def before_model_callback(callback_context, llm_request):
        said = "".join(part.text or "" for part in callback_context.get_last_user_input())
        if said == "<event>session start</event>":
            return LlmResponse.from_parts([Part.from_text("Hello.")])
        if said != "<context>no user activity detected for 2 seconds.</context>":
            set_variable("silences", 0)
            return LlmResponse.from_parts([Part.from_text("You said " + said)])
        silences = (get_variable("silences") or 0) + 1
        set_variable("silences", silences)
        if silences < 3:
            return LlmResponse.from_parts([Part.from_text("Are you there?")])
        return LlmResponse.from_parts([Part.from_text("Goodbye."), Part.from_end_session(reason="no_input_limit")])
"""


async def spoken(folder: Path, app: Path, heard: Sequence[str], thought: Sequence[Any], converse: Any) -> Any:
    """The record of a call in which the caller did that."""
    with serve(folder, project=app, **scripts(folder, heard, thought)) as server:
        async with talker(server.sip) as caller:
            await converse(caller)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert "Traceback" not in server.errors.read_text()
    return record


async def test_the_answer_ends_hold_audio_and_waits_for_a_notice(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"before_model": WAITS})
    (app / "audio").mkdir()
    (app / "audio" / "hold.wav").write_bytes(tone(8000, 60.0))
    (app / "audio" / "notice.wav").write_bytes(tone(16000, 3.0))

    async def converse(caller: Talker) -> None:
        await caller.listen(1)
        await caller.say()
        await caller.speaks(2)
        await asyncio.sleep(5)
        await caller.say()
        await asyncio.sleep(1.5)
        # Nobody interrupts the notice.
        await caller.say()
        await asyncio.sleep(6)

    thought = [{"delay": 3.0, "text": "It comes tomorrow."}, {"text": "You are welcome."}]
    record = await spoken(tmp_path, app, ["Where is it?", "And the rules?", "Thank you."], thought, converse)
    waited, rules, thanked = record["turns"][1:4]
    moment, hold, answer = waited["spoken"]
    assert [each["text"] for each in waited["spoken"]] == ["One moment.", "[hold.wav]", "It comes tomorrow."]
    assert hold["started_at"] - moment["ended_at"] == pytest.approx(0, abs=0.1)
    # The music is a minute long; the model takes three seconds.
    assert answer["started_at"] - moment["started_at"] == pytest.approx(3.0, abs=0.5)
    assert answer["started_at"] - hold["ended_at"] == pytest.approx(0, abs=0.05)
    assert waited["agent_response"] == "One moment. [hold.wav] It comes tomorrow."
    notice, rest = rules["spoken"]
    # To its end; on a machine that stalls it takes longer.
    assert notice["ended_at"] - notice["started_at"] >= 2.9
    assert rest["started_at"] - notice["ended_at"] == pytest.approx(0, abs=0.1)
    assert not rules["barge_in"] or rules["agent_response"].startswith("[notice.wav]")
    # What was said over it is not lost: it is the next turn.
    assert (thanked["user_input"], thanked["agent_response"]) == ("Thank you.", "You are welcome.")


async def test_a_response_is_not_interrupted_and_another_takes_keys(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"before_model": ENTRY})

    async def converse(caller: Talker) -> None:
        await caller.listen(1)
        # Keys that nobody asked for are no turn.
        await caller.line.send_digits("9")
        await caller.say()
        await caller.speaks(2)
        await asyncio.sleep(0.5)
        await caller.say()
        # The notice and its answer follow each other without a gap.
        await caller.listen(2)
        await caller.line.send_digits("12")
        await caller.listen(3)
        await caller.line.send_digits("34#*")
        await caller.listen(4)
        await caller.line.send_digits("*")
        await caller.ended()

    record = await spoken(tmp_path, app, ["My account.", "I agree."], [], converse)
    assert [(turn["user_input"], turn["user_input_dtmf"]) for turn in record["turns"]] == [
        ("", ""), ("My account.", ""), ("I agree.", ""), ("", "12"), ("", "34#"), ("", "*"),
    ]  # fmt: skip
    notice = record["turns"][1]
    assert not notice["barge_in"]
    assert notice["agent_response"].endswith("before the end of this notice stops it.")
    assert record["turns"][-1]["agent_response"] == "I heard *"
    # A second of silence ends an entry; the finish key ends it at once.
    pressed = {each["digit"] + str(index): each["at"] for index, each in enumerate(record["digits"])}
    answers = [turn["spoken"][0]["started_at"] for turn in record["turns"][3:]]
    assert [one[0] for one in pressed] == list("912") + list("34#*") + ["*"]
    times = list(pressed.values())
    assert answers[0] - times[2] == pytest.approx(1.0, abs=0.3)
    assert answers[1] - times[6] < 0.5
    assert answers[2] - times[7] < 0.5
    assert record["end_reason"] == "agent_hangup"


async def test_silence_is_told_to_the_app_and_counts_until_the_caller_speaks(tmp_path: Path) -> None:
    app = write_app(
        tmp_path, app={"audioProcessingConfig": {"inactivityTimeout": "2s"}}, callbacks={"before_model": SILENT}
    )

    async def converse(caller: Talker) -> None:
        await caller.listen(2)
        await caller.say()
        await caller.ended(40)

    record = await spoken(tmp_path, app, ["Yes, yes."], [], converse)
    assert [(turn["user_input"], turn["agent_response"]) for turn in record["turns"]] == [
        ("", "Hello."), ("", "Are you there?"), ("Yes, yes.", "You said Yes, yes."),
        ("", "Are you there?"), ("", "Are you there?"), ("", "Goodbye."),
    ]  # fmt: skip
    assert {"name": "end_session_reason", "value": "no_input_limit"} in record["metrics"]
    for before, silent in ((0, 1), (2, 3), (3, 4), (4, 5)):
        ended = record["turns"][before]["spoken"][-1]["ended_at"]
        assert record["turns"][silent]["spoken"][0]["started_at"] - ended == pytest.approx(2.0, abs=0.3)
