"""Sessions of the Session API without their sockets, as text (`CxSession`) or with audio (`SpokenSession`).

Inputs in the API's JSON format begin turns, and turns produce outputs in the same format.

A session with audio runs as a call and sends its outputs to the client. It differs from a telephone call in three ways.
The client starts the session, so the agent does not greet before that. The client carries out the app's client
functions. In place of a transfer the session ends, and the client receives the parameters of `end_session`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from callagent.agents import actions, protocol
from callagent.agents.cx.engine import SESSION_START, CxAgent
from callagent.agents.tree import Content, parts
from callagent.audio import DIGITS
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.errors import CallagentError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject

MAX_TEXT = 64 * 1024
"""Characters of one input, together with the inputs that it continues."""
_START_EVENTS = ("session_start", "session start", "welcome")
"""Events by which published clients start a session."""
_OUTPUT_KINDS = frozenset(("audio", "endSession", "payload", "text", "toolCalls"))
"""Fields of `SessionOutput` of which one output has at most one (a oneof in the API)."""
_INPUT_KINDS = ("text", "dtmf", "variables", "event", "toolResponses")
Output = MutableJsonObject
"""An output in the API's form (`SessionOutput`)."""
SendOutput = Callable[[Output], Awaitable[None]]
"""Sends an output to the client and waits until the connection has accepted it."""
RunTurn = Callable[[protocol.Emit], Coroutine[object, None, None]]
"""Runs a turn of the agent, which emits its actions."""
TextOutput = tuple[actions.Say, Output]
"""A spoken text and its output."""
Speak = Callable[[actions.Say], Awaitable[str]]
"""Returns the audio of a spoken text, in base64."""


class InputRefused(CallagentError):
    """The client's input cannot be used. The message is for the client."""


class NotFound(InputRefused):
    """There is no app or deployment of this name."""


class CxSession:
    """One session. Its turns run one after another; cancelling `run_inputs` interrupts one."""

    def __init__(self, agent: CxAgent) -> None:
        self.agent = agent
        self._turns = 0
        self._pending_text = ""
        """Text received with `willContinue`."""
        self._digits = ""
        """Digits received with `willContinue`."""
        self._digit_settings = actions.DigitSettings(end_key="#")
        """The settings of the agent's last request for digits."""
        self.ended = False

    async def run_inputs(self, inputs: Sequence[JsonObject], send: SendOutput, speak: Speak | None = None) -> None:
        """Run the turns that the inputs begin and send their outputs; a turn's last output has `turnCompleted`.

        With `speak`, the audio of each text follows it. Raises `InputRefused`.
        """
        if self.ended:
            raise InputRefused("the session has ended")
        for client_input in inputs:
            run = self._turn_for(client_input)
            if run is not None:
                await self._run_turn(run, send, speak)
            if self.ended:
                return

    async def close(self) -> None:
        """Run the app's code for the end of a session and close the agent."""
        await self.agent.end(EndReason.CALLER_HANGUP, 1)
        await self.agent.close()

    def _turn_for(self, client_input: JsonObject) -> RunTurn | None:
        """Return the function that runs the turn of an input; None if the input begins no turn."""
        kind = next((key for key in _INPUT_KINDS if key in client_input), None)
        value = client_input.get(kind) if kind else None
        match kind, value:
            case "text", str(text):
                return self._text_turn(text, will_continue=bool(client_input.get("willContinue")))
            case "dtmf", str(digits):
                return self._digits_turn(digits, will_continue=bool(client_input.get("willContinue")))
            case "event", {"event": str(event)}:
                words = event_words(event)
                return self.agent.start if words == SESSION_START else self._reply_to(words)
            case "variables", dict(variables):
                self.agent.set_variables(variables)
                return None
            case "toolResponses", {"toolResponses": [*answers]}:
                return partial(self.agent.answer, tool_answers(answers))
        known = ", ".join(_INPUT_KINDS)
        raise InputRefused(f"an input has one of {known}, of the API's form; got {sorted(client_input)}")

    def _text_turn(self, text: str, *, will_continue: bool) -> RunTurn | None:
        self._pending_text += text
        if len(self._pending_text) > MAX_TEXT:
            raise InputRefused(f"the text has more than {MAX_TEXT} characters")
        if will_continue:
            return None
        text, self._pending_text = self._pending_text, ""
        return self._reply_to(text)

    def _digits_turn(self, digits: str, *, will_continue: bool) -> RunTurn | None:
        """Collect keys; return the turn of their entry after its finish key or without `willContinue`, else None."""
        self._digits = (self._digits + "".join(each for each in digits if each in DIGITS))[:MAX_TEXT]
        finish = self._digit_settings.end_key
        ended = bool(finish) and finish in self._digits
        if will_continue and not ended:
            return None
        entered, self._digits = self._digits, ""
        # Keys after the finish key are dropped, as on the telephone. A finish key alone is an entry of its own, because
        # an app may ask for "press #" only.
        before = entered.partition(finish)[0] if ended else entered
        return partial(self.agent.reply, protocol.CallerTurn(digits=before or entered[:1]))

    def _reply_to(self, text: str) -> RunTurn:
        return partial(self.agent.reply, protocol.CallerTurn(text=text))

    def begin_turn(self) -> TurnOutputs:
        """Count a turn and return the collector of its outputs."""
        self._turns += 1
        return TurnOutputs(self.agent, self._turns)

    def _note_action(self, turn: TurnOutputs, action: actions.Action) -> TextOutput | None:
        """Note an action of the turn; if it is a spoken text, return the text and its output."""
        match action:
            case actions.Say(text):
                return action, turn.text_output(text)
            case actions.FunctionEnded() | actions.ModelAnswered():
                turn.note(action)
            case actions.Listen(settings):
                # A client may send keys at any time; these settings say how an entry ends.
                self._digit_settings = settings.digits or actions.DigitSettings(end_key="#")
            case actions.HangUp() | actions.Handoff():
                self.ended = True
        return None

    async def _run_turn(self, run: RunTurn, send: SendOutput, speak: Speak | None) -> None:
        turn = self.begin_turn()
        # The turn must not wait for a client that reads slowly, because its tools have deadlines and its spans measure
        # time. So texts are queued; the length of the model's answers bounds the queue.
        texts: asyncio.Queue[TextOutput | None] = asyncio.Queue()

        def emit(action: actions.Action) -> None:
            if (output := self._note_action(turn, action)) is not None:
                texts.put_nowait(output)

        turn_task = asyncio.create_task(run(emit))
        # None follows the last text, also if the turn ends with an error.
        turn_task.add_done_callback(lambda _: texts.put_nowait(None))
        try:
            while (text := await texts.get()) is not None:
                say, output = text
                await send(output)
                if speak is not None:
                    await send({"audio": await speak(say), **turn.index})
            await turn_task
        finally:
            # The turn is still running if the client is gone or has interrupted it.
            if not turn_task.done():
                turn_task.cancel()
                await asyncio.wait({turn_task})
        for output in self._closing_outputs(turn):
            await send(output)

    def _closing_outputs(self, turn: TurnOutputs) -> Iterator[Output]:
        """Yield the outputs after the texts: payloads, the client's tool calls, and the one that completes the turn."""
        # Payloads follow the texts, because clients show them beside the words.
        yield from turn.payload_outputs()
        last = turn.last_output()
        if client_calls := self.agent.client_tool_calls():
            last["toolCalls"] = {"toolCalls": client_calls}
        if self.ended:
            if client_calls:
                # An output has one kind of content, so the calls are sent before the end.
                yield {"toolCalls": last.pop("toolCalls"), **turn.index}
            last["endSession"] = {"metadata": self.agent.end_metadata()}
        yield last


def whole_turns(outputs: Sequence[JsonObject]) -> list[Output]:
    """Join the texts of each turn into one, as clients that do not stream expect them.

    The text goes into the turn's last output, or before it where that has content of another kind.
    """
    found: list[Output] = []
    texts: list[str] = []
    for output in outputs:
        if output.get("turnCompleted"):
            joined = {"text": " ".join(texts)} if texts else {}
            if joined and not _OUTPUT_KINDS.isdisjoint(output):
                found.append({**joined, "turnIndex": output["turnIndex"]})
                joined = {}
            found.append({**joined, **output})
            texts = []
        elif "text" in output:
            texts.append(str(output["text"]))
        else:
            found.append(dict(output))
    return found


def event_words(event: str) -> str:
    """Return the text that stands for a client's event in the caller's turn."""
    # Names of other events are cut to a bounded length, because they become part of the prompt.
    return SESSION_START if event.strip().lower() in _START_EVENTS else f"<event>{event[:200]}</event>"


def tool_answers(answers: Sequence[JsonValue]) -> Content:
    """Return a client's answers to calls of its functions as a content. Raises `InputRefused`."""
    return {"role": "user", "parts": [_response_part(each) for each in answers]}


def _response_part(answer: JsonValue) -> JsonObject:
    if not isinstance(answer, Mapping):
        raise InputRefused("a tool response should be an object with 'id', 'displayName' and 'response'")
    name = str(answer.get("displayName") or answer.get("tool") or "").rsplit("/", 1)[-1]
    return {
        "function_response": {"id": str(answer.get("id") or ""), "name": name, "response": answer.get("response") or {}}
    }


class TurnOutputs:
    """The collector of one turn's outputs. `last_output` is called once, after all other methods."""

    def __init__(self, agent: CxAgent, index: int) -> None:
        self._agent = agent
        self._agent.spans().begin()
        self.index = {"turnIndex": index}
        self._messages: list[JsonValue] = []

    def text_output(self, text: str) -> Output:
        """Note a spoken text and return its output."""
        self._messages.append({"role": "agent", "chunks": [{"text": text}]})
        return {"text": text, **self.index}

    def note(self, ended: actions.FunctionEnded | actions.ModelAnswered) -> None:
        """Note a tool call or a request to the model for `diagnosticInfo`."""
        spans = self._agent.spans()
        if isinstance(ended, actions.FunctionEnded):
            self._messages.append(_tool_message(ended))
            spans.add_ended("tool", ended.duration_ms / 1000, {"name": ended.name, "error": ended.error})
        else:
            spans.add_ended("model", ended.finished - ended.requested, _model_attributes(ended))

    def payload_outputs(self) -> Iterator[Output]:
        """Yield the outputs of the payloads since the previous call of this method."""
        for payload in self._agent.take_payloads():
            yield {"payload": payload, **self.index}

    def last_output(self) -> Output:
        """Return the output that completes the turn, with its messages and spans."""
        diagnosis: JsonObject = {"messages": self._messages, "rootSpan": self._agent.spans().root_span(self.index)}
        return {**self.index, "turnCompleted": True, "diagnosticInfo": diagnosis}


def _model_attributes(answered: actions.ModelAnswered) -> JsonObject:
    first = None if answered.first_token is None else round(answered.first_token - answered.requested, 6)
    return {
        "inputTokens": answered.input_tokens,
        "outputTokens": answered.output_tokens,
        "firstTokenSeconds": first,
        "error": answered.error,
    }


def _tool_message(ended: actions.FunctionEnded) -> JsonObject:
    identifier = {"id": str(ended.number), "displayName": ended.name}
    result = ended.result if ended.error is None else {"error": ended.error}
    response = result if isinstance(result, dict) else {"result": result}
    return {
        "role": "agent",
        "chunks": [
            {"toolCall": {**identifier, "args": dict(ended.arguments)}},
            {"toolResponse": {**identifier, "response": response}},
        ],
    }


TOOL_ANSWERS: Final = "<context>tool responses</context>"
"""Text that stands for a client's answers to tool calls in the caller's turn."""
MAX_START_SECONDS: Final = 60.0
"""Seconds that a client may take before its first input."""
PutOutput = Callable[[Output], None]
"""Sends an output of the session to the client. Returns at once."""


class SpokenSession:
    """The `agents.protocol.Agent` of a session with audio. The session outlives the call and is closed by its owner."""

    def __init__(self, session: CxSession, put: PutOutput) -> None:
        self._session = session
        self._agent = session.agent
        self._put = put
        self._turn: TurnOutputs | None = None
        """The turn whose last output has not been sent yet."""
        self._tool_answers: list[JsonValue] = []

    async def start(self, emit: protocol.Emit) -> None:
        emit(actions.Listen(actions.ListenSettings(no_input_timeout=MAX_START_SECONDS)))

    async def reply(self, turn: protocol.CallerTurn | protocol.HandoffFailed, emit: protocol.Emit) -> None:
        self.close_turn()
        outputs = self._turn = self._session.begin_turn()

        def emit_to_both(action: actions.Action) -> None:
            # An interrupted turn has sent its last output, which nothing may follow, not even the end of a function
            # that was still running.
            if self._turn is outputs:
                self._put_action(outputs, action)
            # The client of a session cannot be transferred: the call ends, and `endSession` has the parameters.
            emit(actions.HangUp(EndReason.HANDOFF) if isinstance(action, actions.Handoff) else action)

        await self._run_turn(turn, emit_to_both)

    def answer_tools(self, answers: Sequence[JsonValue]) -> None:
        """Keep a client's answers for the turn whose text is `TOOL_ANSWERS`. Raises `InputRefused`."""
        self._tool_answers += parts(tool_answers(answers))

    def close_turn(self) -> None:
        """Send the turn's last output, once, because the turn was heard to its end or was interrupted."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._put(turn.last_output())

    @property
    def turn_index(self) -> Mapping[str, int]:
        """The index of the turn to which audio belongs now; empty if it belongs to none."""
        return {} if self._turn is None else self._turn.index

    @property
    def end_metadata(self) -> MutableJsonObject | None:
        """The metadata of `endSession`; None while the agent has not ended the session."""
        return self._agent.end_metadata() if self._session.ended else None

    def heard(self, text: str, *, cut: bool) -> None:
        self._agent.heard(text, cut=cut)

    def filler_spoken(self, text: str) -> None:
        self._agent.filler_spoken(text)

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        return await self._agent.end(reason, attempt, headers)

    async def close(self) -> None:
        """Close nothing: the session may go on in another call, or as text."""

    def record(self) -> protocol.AgentRecord:
        return self._agent.record()

    async def _run_turn(self, turn: protocol.CallerTurn | protocol.HandoffFailed, emit: protocol.Emit) -> None:
        answers, self._tool_answers = self._tool_answers, []
        # A call has only turns of text, so texts stand for tool answers and for the start of the session.
        if answers and isinstance(turn, protocol.CallerTurn) and turn.text == TOOL_ANSWERS:
            await self._agent.answer({"role": "user", "parts": answers}, emit)
        elif isinstance(turn, protocol.CallerTurn) and turn.text == SESSION_START:
            await self._agent.start(emit)
        else:
            await self._agent.reply(turn, emit)

    def _put_action(self, turn: TurnOutputs, action: actions.Action) -> None:
        """Report an action to the client."""
        match action:
            case actions.Say(text=text):
                self._put(turn.text_output(text))
            case actions.FunctionEnded() | actions.ModelAnswered():
                turn.note(action)
            case actions.Listen():
                self._put_closing_outputs(turn)
            case actions.HangUp() | actions.Handoff():
                self._session.ended = True
                self._put_closing_outputs(turn)

    def _put_closing_outputs(self, turn: TurnOutputs) -> None:
        """Send the payloads and client tool calls of a turn that has ended."""
        for payload in turn.payload_outputs():
            self._put(payload)
        if client_calls := self._agent.client_tool_calls():
            self._put({"toolCalls": {"toolCalls": client_calls}, **turn.index})


class SpokenProject:
    """The `agents.protocol.AgentProject` of one session with audio: each call gets the session's agent."""

    def __init__(self, project: protocol.AgentProject, agent: SpokenSession) -> None:
        self.name = project.name
        self._project = project
        self._agent = agent

    async def prepare(self) -> None:
        """Do nothing: the project was prepared when it was opened."""

    def graph(self) -> protocol.ProjectGraph:
        return self._project.graph()

    def real_time_folder(self, environment: str) -> Path | None:
        return self._project.real_time_folder(environment)

    def phrases(self) -> Sequence[str]:
        return self._project.phrases()

    def pronounce(self, text: str, language: str | None) -> str:
        return self._project.pronounce(text, language)

    async def prompt_positions(
        self, at: datetime | None = None, state: JsonObject | None = None
    ) -> list[protocol.PromptPosition]:
        return await self._project.prompt_positions(at, state)

    async def open(self, info: CallInfo, write_metric: protocol.MetricWriter) -> SpokenSession:
        return self._agent

    async def close(self) -> None:
        """Close nothing: project and session are closed by their owners."""
