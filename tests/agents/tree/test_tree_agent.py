from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from callagent.agents.actions import Say
from callagent.agents.protocol import CallerTurn
from callagent.agents.tree import (
    CodeAnswer,
    CodeCall,
    CodeNode,
    Conversation,
    Invocation,
    SharedState,
    State,
    text_content,
)
from callagent.agents.tree.worker_client import WorkerClient
from callagent.errors import ProviderTimeout
from callagent.models import Delta, Message, ModelSettings, Tool
from tests.agents.driving import interrupted, replied, words
from tests.agents.tree.support import Functions, code_tool, driven, llm


async def test_a_turn_that_goes_on_is_one_turn_for_the_model() -> None:
    async with driven(llm("root"), {"text": "Fine."}, {"text": "Good."}) as tree:
        await tree.says("I want")
        tree.agent.heard("", cut=True)
        await replied(tree.agent, CallerTurn("I want a table", reopens=True))
        assert [text for author, text in tree.events if author == "user"] == ["I want a table"]


async def test_a_turn_that_called_something_stays_when_the_caller_goes_on() -> None:
    entries: list[dict[str, Any]] = [{"calls": [{"name": "book"}]}, {"text": "Booked."}, {"text": "Good."}]

    async def book(arguments: dict[str, Any]) -> Any:
        return {"done": True}

    async with driven(llm("root", tools=(code_tool("book"),)), *entries) as tree:
        tree.code.named["book"] = book
        await tree.says("a table")
        await replied(tree.agent, CallerTurn("a table please", reopens=True))
        assert [text for author, text in tree.events if author == "user"] == ["a table", "a table please"]


async def test_the_model_never_sees_secret_digits() -> None:
    async with driven(llm("root"), {"text": "Thank you."}) as tree:
        await replied(tree.agent, CallerTurn(digits="4929001", secure=True))
        events = json.dumps([event.as_plain() for event in tree.agent.conversation.events])
        assert "4929001" not in events
        assert "[secure digits 1]" in events


class EchoLease:
    """A worker that gives back and prints what its tools are given."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def run(self, request: Any, *, timeout: float, on_message: Any) -> Any:
        self.requests.append(request)
        await on_message({"level": "info", "message": f"got {request['calls'][0]['args']}"})
        return {"answers": [{"returned": call["args"], "actions": {"state_delta": call["args"]}} for call in
                            request["calls"]]}  # fmt: skip

    async def close(self) -> None:
        return None


async def test_a_tool_gets_the_digits_and_nothing_that_it_gives_back_has_them() -> None:
    root, lease = llm("root"), EchoLease()
    conversation = Conversation(root, State(), SharedState(), "caller")
    name = conversation.vault.put("4929001")
    code = WorkerClient(lease, conversation, 1.0, 1.0)
    call = CodeCall(code_tool("pay"), "1", {"card": name})
    (answer,) = await code.tools(Invocation(root, "", "", None), [call], parallel=False)
    assert lease.requests[0]["calls"][0]["args"] == {"card": "4929001"}
    assert answer.returned == {"card": name}
    assert "4929001" not in str((answer, conversation.state.values))


class StoppingModel:
    """Stops within its second sentence."""

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        yield Delta("Your parcel is here. It will ar")
        raise ProviderTimeout("no further token")

    async def close(self) -> None:
        return None


async def test_history_has_what_was_said_of_an_answer_that_stopped() -> None:
    async with driven(llm("desk"), model=StoppingModel()) as call:  # type: ignore[arg-type]
        actions = await call.says("Where is it?")
        assert next(action.text for action in actions if isinstance(action, Say)) == "Your parcel is here."
        assert ("desk", "Your parcel is here.") in call.events
        assert not [text for _, text in call.events if "will ar" in text]


class SpeakingAgent(Functions):
    """An agent made of code that says two sentences, the second one once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def agent(self, invocation: Invocation, on_event: Any, run_child: Any) -> CodeAnswer:
        await on_event({"content": text_content("model", "One.")})
        await self.may_go_on.wait()
        await on_event({"content": text_content("model", "Two.")})
        return CodeAnswer()


async def test_what_code_says_after_an_interruption_is_in_the_history_and_not_spoken() -> None:
    code = SpeakingAgent()
    async with driven(CodeNode(name="root"), code=code) as tree:
        before = await interrupted(tree.agent, CallerTurn("go"), lambda action: isinstance(action, Say))
        code.may_go_on.set()
        after = await tree.says("go on")
        assert (words(before), words(after)) == (["One."], ["One.", "Two."])
        said = [text for author, text in tree.events if author == "root"]
        assert said == ["One.", "Two.", "One.", "Two."]
