"""An app answers a SIP call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.agents.cx.support import DESK
from tests.end_to_end.scripted import scripts, talker
from tests.end_to_end.server_process import serve

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
