"""An app answers a SIP call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.agents.cx.support import DESK
from tests.end_to_end.scripted import scripts, talker
from tests.end_to_end.server_process import serve

LONG = "I explain this bill from its first line to its last. " * 8
HEARD = ["My account.", "A person, please."]
THOUGHT: list[dict[str, Any]] = [
    {"expect": {"last_user": "^123$"}, "calls": [{"name": "read_meter", "arguments": {"number": "123"}}]},
    {"text": "It stands at four hundred and seventeen."},
]

pytestmark = pytest.mark.end_to_end


async def test_the_caller_enters_a_number_and_is_handed_to_a_person(tmp_path: Path) -> None:
    with serve(tmp_path, project=DESK, **scripts(tmp_path, HEARD, THOUGHT)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            await caller.say()
            await caller.listen(2)
            await caller.line.send_digits("123#")
            await caller.listen(3)
            await caller.say()
            await caller.ended()
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert [(turn["user_input"], turn["agent_response"]) for turn in record["turns"]] == [
        ("", "City utilities, hello."),
        ("My account.", "Enter your number."),
        ("", "It stands at four hundred and seventeen."),
        ("A person, please.", "I put you through."),
    ]
    assert "".join(one["digit"] for one in record["digits"]) == "123#"
    assert record["state"]["meter"] == "123"
    assert (record["end_reason"], record["handoff_destination"]) == ("handoff", "live_agent")
    assert {"name": "end_session_reason", "value": "person"} in record["metrics"]
    assert "Traceback" not in server.errors.read_text()


async def test_keys_are_an_entry_with_the_finish_key_alone_and_without_it_after_a_silence(tmp_path: Path) -> None:
    thought: list[dict[str, Any]] = [
        {"expect": {"last_user": "^#$"}, "text": "Nothing was entered."},
        {"expect": {"last_user": "^45$"}, "text": "Forty-five."},
        {"text": "No keys are wanted."},
    ]
    heard = ["My account.", "My account.", "And now?"]
    with serve(tmp_path, project=DESK, **scripts(tmp_path, heard, thought)) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            await caller.say()
            await caller.listen(2)
            await caller.line.send_digits("#")
            await caller.listen(3)
            await caller.say()
            await caller.listen(4)
            await caller.line.send_digits("45")
            await caller.listen(5)
            # No entry is asked for here: the keys are none, the words count.
            await caller.line.send_digits("9")
            await caller.say()
            await caller.listen(6)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert [turn["agent_response"] for turn in record["turns"]] == [
        "City utilities, hello.",
        "Enter your number.",
        "Nothing was entered.",
        "Enter your number.",
        "Forty-five.",
        "No keys are wanted.",
    ]
    assert record["turns"][-1]["user_input"] == "And now?"


async def test_another_agent_takes_over_is_interrupted_and_refers_the_caller(tmp_path: Path) -> None:
    ending = {"reason": "works", "session_escalated": True}
    thought: list[dict[str, Any]] = [
        {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "Billing"}}]},
        {"text": LONG.strip()},
        {"text": "As you like.", "calls": [{"name": "end_session", "arguments": ending}]},
    ]
    config = tmp_path / "callagent.toml"
    config.write_text('[[targets]]\nprefix = "+15550199"\n')
    settings = scripts(tmp_path, ["My bill.", "Stop it."], thought)
    asked: list[str] = []
    with serve(tmp_path, "--config", str(config), project=DESK, **settings) as server:
        async with talker(server.sip) as caller:
            caller.line.on_transfer = asked.append
            await caller.listen(1)
            await caller.say()
            await caller.speaks(2)
            await asyncio.sleep(1.5)
            await caller.say()
            await caller.ended()
            headers = {name.lower(): value for name, value in caller.line.transfer_headers.items()}  # type: ignore[attr-defined]
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    _, billing, works = record["turns"]
    # The transfer itself is not heard: the new agent's words are all there is.
    assert (billing["user_input"], billing["step"], works["step"]) == ("My bill.", "billing", "billing")
    assert LONG.startswith(billing["agent_response"])
    assert len(billing["agent_response"]) < len(LONG.strip())
    assert billing["barge_in"]
    assert (works["user_input"], works["agent_response"]) == ("Stop it.", "As you like.")
    assert [target.partition("@")[0] for target in asked] == ["sip:+15550199"]
    assert headers["x-topic"] == "bill"
    assert headers["user-to-user"] == f"{b'k1=v1;k2=v2'.hex()};encoding=hex;purpose=Goog-Session-Param"
    assert record["transfers"][0]["method"] == "refer"
    assert record["transfers"][0]["status"] == "succeeded"
    assert "Traceback" not in server.errors.read_text()
