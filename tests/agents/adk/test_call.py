"""An agent tree on a call: the caller's words and keys reach it, its words are spoken, and it gives the call away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from callagent.agents.adk import adk_runtime, load_adk_project
from callagent.agents.tree import TreeSettings
from callagent.call import Call, CallServices, CallSettings
from callagent.legs.leg import TransferTarget
from callagent.models.scripted import ScriptedModel
from callagent.records import CallRecord
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice
from callagent.testing.in_process import InProcessPool
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.agents.adk.support import write_project
from tests.call.test_call import MemoryStore
from tests.fakes import FakeLeg, LoudnessActivity

FILES = {
    "root_agent.yaml": """
        name: reception
        instruction: Answer the telephone.
        sub_agents: [{config_path: accounts.yaml}]
    """,
    "accounts.yaml": """
        name: accounts
        instruction: Ask for the number.
        tools:
          - {name: callagent.collect_digits, args: {max_digits: 5, end_key: "#"}}
          - {name: callagent.hand_off, args: {destination: people, method: refer, headers: {X-Topic: account}}}
    """,
}
SCRIPT: tuple[dict[str, Any], ...] = (
    {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "accounts"}}]},
    {"text": "Please enter your number.", "calls": [{"name": "collect_digits"}]},
    {
        "expect": {"last_user": "^123$"},
        "text": "Now I explain at great length what there is to know about it, and more.",
    },
    {"text": "I put you through.", "calls": [{"name": "hand_off", "arguments": {"reason": "wants people"}}]},
)


def play(project: Path) -> tuple[CallRecord, FakeLeg, list[TransferTarget]]:
    targets = []

    def resolve(handoff: Any) -> TransferTarget:
        targets.append(TransferTarget(handoff.destination, "sip:people@192.0.2.1", handoff.method, handoff.headers))
        return targets[-1]

    async def invocation() -> tuple[CallRecord, FakeLeg, list[TransferTarget]]:
        loop = asyncio.get_running_loop()
        leg = FakeLeg()
        # A question, and an interruption of the long answer after the digits.
        leg.media.speech = [(4.0, 5.0), (13.0, 14.5)]
        for at, key in ((9.0, "1"), (9.5, "2"), (10.0, "3"), (10.5, "#")):
            loop.call_later(at, leg.presses, key)

        def make_turn_manager(emit: Any) -> TurnManager:
            ears = CallerInput(ScriptedRecognizer(["my account", "a person please"]), LoudnessActivity())
            return TurnManager(ears, ScriptedVoice(), emit, TurnSettings())

        services = CallServices(MemoryStore(), resolve, lambda provider, name: False)  # type: ignore[arg-type]
        settings = TreeSettings(greeting="Good morning.")
        loaded = load_adk_project(
            project, ScriptedModel.from_entries(*SCRIPT), InProcessPool(adk_runtime(project)), settings
        )
        record = await Call(leg, loaded, make_turn_manager, services, CallSettings()).run()
        return record, leg, targets

    return run(invocation())


def test_a_call_goes_through_transfer_digits_barge_in_and_handoff(tmp_path: Path) -> None:
    record, leg, targets = play(write_project(tmp_path, FILES))

    turns = {turn.number: turn for turn in record.turns}
    assert turns[0].agent_response == "Good morning."
    assert [turn.user_input or turn.user_input_dtmf for turn in record.turns[1:]] == [
        "my account",
        "123",
        "a person please",
    ]
    assert turns[1].agent_response == "Please enter your number."
    assert (turns[1].flow, turns[1].step) == ("reception", "accounts")
    assert turns[2].barge_in
    assert turns[2].agent_response.startswith("Now I explain")
    assert not turns[2].agent_response.endswith("more.")
    assert record.handoff
    assert (record.handoff_destination, record.handoff_reason) == ("people", "wants people")
    assert [(target.method, dict(target.headers)) for target in targets] == [("refer", {"X-Topic": "account"})]
    assert leg.did[-2:] == ["transfer refer sip:people@192.0.2.1", "hang up handoff"]
    assert record.end_reason == "handoff"
