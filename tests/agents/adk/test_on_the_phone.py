"""An agent tree answers a SIP call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callagent.call_info import EndReason
from tests.agents.adk.support import write_project
from tests.end_to_end.scripted import scripts, talker
from tests.end_to_end.server_process import serve
from tests.end_to_end.test_bridge import miller

FILES = {
    "__init__.py": "",
    "root_agent.yaml": """
        name: tutor
        description: Finds the right tutor.
        instruction: Find the right tutor.
        sub_agents: [{config_path: numbers.yaml}]
    """,
    "numbers.yaml": """
        name: numbers
        description: Teaches numbers.
        instruction: Teach numbers. The pupil is {pupil?}.
        tools:
          - name: agency.code.pupil_given
          - {name: callagent.collect_digits, args: {end_key: "#"}}
          - name: callagent.hand_off
            args: {destination: teacher, method: refer, headers: {X-Class: "7", User-to-User: "6869;encoding=hex"}}
    """,
    "code.py": """
        from google.adk.tools import ToolContext

        def pupil_given(number: str, tool_context: ToolContext):
            tool_context.state["pupil"] = number
            return {"known": True}
    """,
}
LONG = "A number is what is left when you forget what it was that you counted. " * 6
THOUGHT: list[dict[str, Any]] = [
    {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "numbers"}}]},
    {"text": "Enter your pupil number.", "calls": [{"name": "collect_digits"}]},
    {"expect": {"last_user": "^123$"}, "calls": [{"name": "pupil_given", "arguments": {"number": "123"}}]},
    {"text": LONG.strip()},
    {"text": "I call her.", "calls": [{"name": "hand_off", "arguments": {"reason": "wants the teacher"}}]},
]

pytestmark = pytest.mark.end_to_end


async def test_a_call_goes_through_transfer_digits_barge_in_and_refer(tmp_path: Path) -> None:
    project = write_project(tmp_path, FILES)
    config = tmp_path / "callagent.toml"
    config.write_text('[[targets]]\nname = "teacher"\nuri = "sip:teacher@192.0.2.1"\n')
    settings = scripts(tmp_path, ["Numbers.", "The teacher, please."], THOUGHT)
    asked: list[str] = []
    with serve(tmp_path, "--config", str(config), project=project, **settings) as server:
        async with talker(server.sip) as caller:
            caller.line.on_transfer = asked.append
            await caller.say()
            await caller.listen(1)
            await caller.line.send_digits("123#")
            await caller.speaks(2)
            await asyncio.sleep(1.5)
            await caller.say()
            await caller.ended()
            headers = {name.lower(): value for name, value in caller.line.transfer_headers.items()}  # type: ignore[attr-defined]
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    asking, teaching, leaving = [turn for turn in record["turns"] if turn["agent_response"]]
    # The transfer itself is not heard: the new agent's words are all there is.
    assert (asking["user_input"], asking["agent_response"]) == ("Numbers.", "Enter your pupil number.")
    assert (asking["flow"], asking["step"]) == ("tutor", "numbers")
    assert teaching["user_input_dtmf"] == "123"
    assert LONG.startswith(teaching["agent_response"])
    assert len(teaching["agent_response"]) < len(LONG.strip())
    assert teaching["barge_in"]
    assert (leaving["user_input"], leaving["agent_response"]) == ("The teacher, please.", "I call her.")
    assert record["state"]["pupil"] == "123"
    assert asked == ["sip:teacher@192.0.2.1"]
    assert (headers["x-class"], headers["user-to-user"]) == ("7", "6869;encoding=hex")
    assert (record["transfers"][0]["method"], record["transfers"][0]["status"]) == ("refer", "succeeded")
    assert record["handoff_reason"] == "wants the teacher"
    assert "Traceback" not in server.errors.read_text()


INVITING = """
    name: tutor
    instruction: Find the right tutor.
    tools: [{name: callagent.hand_off, args: {destination: teacher, method: invite}}]
"""


async def test_an_agent_calls_a_person_and_stays_in_between(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"root_agent.yaml": INVITING})
    thought = [{"text": "I call her.", "calls": [{"name": "hand_off", "arguments": {"reason": "wants the teacher"}}]}]
    settings = scripts(tmp_path, ["The teacher, please."], thought)
    config = tmp_path / "callagent.toml"
    async with miller() as person:
        config.write_text(f'[[targets]]\nname = "teacher"\nuri = "{person.uri}"\nring_seconds = 60\n')
        with serve(tmp_path, "--config", str(config), project=project, **settings) as server:
            async with talker(server.sip) as caller:
                await caller.say()
                leg = await person.called()
                (await leg.answer()).start(lambda pcm, now: None, lambda: None)
                # Whoever leaves within two seconds has not taken the call.
                await asyncio.sleep(2.5)
                await leg.hang_up(EndReason.AGENT_HANGUP)
                await caller.ended()
            record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert [(one["method"], one["status"]) for one in record["transfers"]] == [("invite", "succeeded")]
    assert record["handoff_reason"] == "wants the teacher"
