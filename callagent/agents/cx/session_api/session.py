"""A session of the Session API as text: inputs as the API writes them, outputs back. No sockets here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from callagent.agents.actions import Action, DigitSettings, FunctionEnded, Handoff, HangUp, Listen, ModelAnswered, Say
from callagent.agents.cx.engine import SESSION_START, CxAgent
from callagent.agents.cx.session_api.turn_outputs import TurnOutputs
from callagent.agents.protocol import CallerTurn
from callagent.audio import DIGITS
from callagent.call_info import EndReason
from callagent.errors import CallagentError

MAX_TEXT = 64 * 1024
"""Characters of one input."""
_START_EVENTS = ("session_start", "session start", "welcome")
_ONE_OF = frozenset(("audio", "endSession", "payload", "text", "toolCalls"))
"""Kinds of output, of which the API's clients take one in each."""
_INPUTS = ("text", "dtmf", "variables", "event", "toolResponses")
Outputs = AsyncGenerator[dict[str, Any], None]
Speak = Callable[[Say], Awaitable[str]]
"""Words as audio, in base64."""


class InputRefused(CallagentError):
    """An input that cannot be taken; the text is for whoever sent it."""


class NotFound(InputRefused):
    """An app or a deployment that is not there."""


class CxSession:
    """Turns are never run at the same time; whoever drives it closes the outputs to interrupt one."""

    def __init__(self, agent: CxAgent) -> None:
        self.agent = agent
        self._turns = 0
        self._pending = ""
        """Text that will continue."""
        self._digits = ""
        self._keys = DigitSettings(end_key="#")
        self.ended = False

    async def take(self, inputs: Sequence[Mapping[str, Any]], speak: Speak | None = None) -> Outputs:
        """The outputs of the turns that the inputs make; the last one of a turn is marked. Raises `InputRefused`.

        With `speak` audio follows each text.
        """
        if self.ended:
            raise InputRefused("the session has ended")
        for given in inputs:
            actions = self._actions(given)
            if actions is None:
                continue
            async with aclosing(self._turn(actions, speak)) as outputs:
                async for output in outputs:
                    yield output
            if self.ended:
                return

    async def close(self) -> None:
        await self.agent.end(EndReason.CALLER_HANGUP, 1)
        await self.agent.close()

    def _actions(self, given: Mapping[str, Any]) -> AsyncIterator[Action] | None:
        """The turn that an input makes; None: it makes none."""
        kind = next((key for key in _INPUTS if key in given), None)
        value = given.get(kind) if kind else None
        match kind, value:
            case "text", str(text):
                return self._spoken(text, will_continue=bool(given.get("willContinue")))
            case "dtmf", str(digits):
                return self._pressed(digits, will_continue=bool(given.get("willContinue")))
            case "event", {"event": str(event)}:
                words = event_words(event)
                return self.agent.start() if words == SESSION_START else self._reply(words)
            case "variables", dict(variables):
                self.agent.set_variables(variables)
                return None
            case "toolResponses", {"toolResponses": [*answers]}:
                return self.agent.answer(tool_answers(answers))
        known = ", ".join(_INPUTS)
        raise InputRefused(f"an input has one of {known}, of the API's form; got {sorted(given)}")

    def _spoken(self, text: str, *, will_continue: bool) -> AsyncIterator[Action] | None:
        self._pending += text
        if len(self._pending) > MAX_TEXT:
            raise InputRefused(f"the text has more than {MAX_TEXT} characters")
        if will_continue:
            return None
        text, self._pending = self._pending, ""
        return self._reply(text)

    def _pressed(self, digits: str, *, will_continue: bool) -> AsyncIterator[Action] | None:
        """Keys end with the finish key; without it when nothing more is announced."""
        self._digits = (self._digits + "".join(each for each in digits if each in DIGITS))[:MAX_TEXT]
        finish = self._keys.end_key
        ended = bool(finish) and finish in self._digits
        if will_continue and not ended:
            return None
        entered, self._digits = self._digits, ""
        before = entered.partition(finish)[0] if ended else entered
        return self.agent.reply(CallerTurn(digits=before or entered[:1]))

    def _reply(self, text: str) -> AsyncIterator[Action]:
        return self.agent.reply(CallerTurn(text=text))

    def begin_turn(self) -> TurnOutputs:
        self._turns += 1
        return TurnOutputs(self.agent, self._turns)

    async def _turn(self, actions: AsyncIterator[Action], speak: Speak | None) -> Outputs:
        turn = self.begin_turn()
        async with aclosing(cast("Any", actions)) as stream:
            async for action in stream:
                match action:
                    case Say(text):
                        yield turn.said(text)
                        if speak is not None:
                            yield {"audio": await speak(action), **turn.index}
                    case FunctionEnded() | ModelAnswered():
                        turn.note(action)
                    case Listen(settings):
                        self._keys = settings.digits or DigitSettings(end_key="#")
                    case HangUp() | Handoff():
                        self.ended = True
        for payload in turn.payloads():
            yield payload
        last = turn.last()
        if asked := self.agent.asked_of_client():
            last["toolCalls"] = {"toolCalls": asked}
        if self.ended:
            if asked:
                yield {"toolCalls": last.pop("toolCalls"), **turn.index}
            last["endSession"] = {"metadata": self.agent.end_metadata()}
        yield last


def whole_turns(outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was said in pieces is one text, in the turn's last output where that is of no other kind."""
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for output in outputs:
        if output.get("turnCompleted"):
            said = {"text": " ".join(texts)} if texts else {}
            if said and not _ONE_OF.isdisjoint(output):
                found.append({**said, "turnIndex": output["turnIndex"]})
                said = {}
            found.append({**said, **output})
            texts = []
        elif "text" in output:
            texts.append(str(output["text"]))
        else:
            found.append(dict(output))
    return found


def event_words(event: str) -> str:
    """How an event of the client's is told to code and model."""
    return SESSION_START if event.strip().lower() in _START_EVENTS else f"<event>{event[:200]}</event>"


def tool_answers(answers: Sequence[Any]) -> dict[str, Any]:
    """Answers of a client to tool calls of ours, as a content. Raises `InputRefused`."""
    return {"role": "user", "parts": [_response(each) for each in answers]}


def _response(given: Any) -> dict[str, Any]:
    """The answer of a client to a tool call of ours."""
    if not isinstance(given, Mapping):
        raise InputRefused("a tool response is an object")
    name = str(given.get("displayName") or given.get("tool") or "").rsplit("/", 1)[-1]
    return {
        "function_response": {"id": str(given.get("id") or ""), "name": name, "response": given.get("response") or {}}
    }
