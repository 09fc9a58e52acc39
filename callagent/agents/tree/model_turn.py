"""The run of an agent with a language model: ask the model, carry out its tool calls, ask again until it calls none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.actions import ModelAnswered, StepEntered
from callagent.agents.kernel import SentenceSplitter
from callagent.agents.tree.events import Actions, Content, Event, PlainObject, RunFailed, calls, responses
from callagent.agents.tree.nodes import CallbackPoint, LlmNode, ToolKind
from callagent.agents.tree.request import ModelRequest, build_request
from callagent.agents.tree.run_context import Outcome, Run, finish_despite_interruption, raise_error
from callagent.agents.tree.structured_output import SavedOutput
from callagent.agents.tree.tool_calls import call_tools, parse_arguments
from callagent.agents.tree.transfer import transfer_target
from callagent.errors import AnswerWithheld, ProviderError
from callagent.models import Delta, Usage

_NO_USAGE = Usage(0, 0)


@dataclass(slots=True)
class Answer:
    """A model's answer as far as it has been streamed."""

    requested: float
    """When the request was sent, in seconds of the event loop's clock."""
    parts: list[dict[str, Any]] = field(default_factory=list)
    first_token: float | None = None
    usage: Usage = _NO_USAGE
    speaks_sentences: bool = False
    """Whether each sentence is spoken as soon as it is complete."""
    sentences: list[str] = field(default_factory=list)
    """The sentences that were spoken."""
    has_empty_text: bool = False
    """Whether the model sent an empty text; recorded traces of the ADK have an event for it."""
    splitter: SentenceSplitter = field(default_factory=SentenceSplitter)

    def feed(self, delta: Delta, now: float, new_id: str) -> list[str]:
        """Add a piece of the stream; its tool call gets the identifier `new_id`. Return the completed sentences."""
        if self.first_token is None and (delta.text or delta.tool_call):
            self.first_token = now
        self.usage = delta.usage or self.usage
        if delta.tool_call is not None:
            call = {"id": new_id, "name": delta.tool_call.name, "args": parse_arguments(delta.tool_call.arguments)}
            self.parts.append({"function_call": call})
        is_empty = not (delta.text or delta.tool_call or delta.usage or delta.progress)
        self.has_empty_text = self.has_empty_text or is_empty
        if not delta.text:
            return []
        if self.parts and "text" in self.parts[-1]:
            self.parts[-1]["text"] += delta.text
        else:
            self.parts.append({"text": delta.text})
        return self.splitter.feed(delta.text)

    @property
    def content(self) -> Content:
        return {"role": "model", "parts": self.parts or ([{"text": ""}] if self.has_empty_text else [])}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Name and arguments of each tool call."""
        called = [part["function_call"] for part in self.parts if "function_call" in part]
        return [{"name": call["name"], "arguments": call["args"]} for call in called]


async def run_llm(run: Run, node: LlmNode) -> Outcome:
    """Run an agent with a model until it has nothing more to do in this turn. Raises `RunFailed`."""
    if run.speaks and not run.branch and run.conversation.enter(node):
        run.emit(StepEntered(node.root.name, node.name))
    output = SavedOutput(node)
    while True:
        event, awaits_tool = await _ask_once(run, node, output)
        # While a long-running tool of the same answer is pending, the target would answer without knowing its result.
        # So the transfer takes effect in the next turn, by `Conversation.active`.
        if event.actions.transfer_to_agent and awaits_tool and not run.nested:
            return Outcome(awaits_tool=True)
        if event.actions.transfer_to_agent:
            return Outcome(transfer=transfer_target(node, event.actions.transfer_to_agent, nested=run.nested))
        if event.is_final:
            return Outcome(event.actions.escalate)


async def _ask_once(run: Run, node: LlmNode, output: SavedOutput) -> tuple[Event, bool]:
    """Ask the model once and carry out its tool calls.

    Returns the last event, and whether a long-running tool has no result yet.
    """
    request = await _request(run, node)
    for offered in request.tools.values():
        # As in the formats' own runtimes, the agent fails when it asks the model, not when the project is opened.
        if offered.kind is ToolKind.UNAVAILABLE:
            raise RunFailed("ValueError", offered.description.replace("{model}", run.settings.model_name))
    _count_model_call(run)
    actions = Actions()
    content, spoken = await _before_model(run, node, request, actions), False
    if content is None:
        content, spoken = await _ask_model(run, node, request, actions)
    event = Event(node.name, content, actions)
    called = calls(content)
    long_running = [call["id"] for call in called if (tool := request.tools.get(call["name"])) and tool.long_running]
    event.long_running = tuple(long_running)
    # The event is added before any tool runs: tools see the calls, and an interruption leaves a history that models
    # accept.
    output.save(event)
    run.append(event, spoken=spoken)
    if not called:
        return event, False
    answer = await finish_despite_interruption(run, call_tools(run, node, request.tools, called, output))
    answered = {each["id"] for each in responses(answer.content)} if answer else set()
    return answer or event, not answered.issuperset(long_running)


def _count_model_call(run: Run) -> None:
    """Count a request to the model, or a callback's answer in its place, which may repeat for ever as well.

    Raises `RunFailed` above the limit.
    """
    run.counters.model_calls += 1
    limit = run.settings.max_model_calls
    if run.counters.model_calls > limit:
        raise RunFailed("LlmCallsLimitExceededError", f"Max number of llm calls limit of `{limit}` exceeded")


async def _request(run: Run, node: LlmNode) -> ModelRequest:
    instruction = None
    if node.instruction is None:
        answer = await finish_despite_interruption(run, run.code.instruction(run.invocation(node)))
        raise_error(answer)
        instruction = str(answer.returned or "")
    conversation = run.conversation
    return build_request(
        node,
        run.branch,
        conversation.events,
        conversation.state.values,
        instruction,
        conversation.storage,
        run.user_content,
    )


async def _before_model(run: Run, node: LlmNode, request: ModelRequest, actions: Actions) -> Content | None:
    """Run the before-model callbacks; return the content with which they replace the model's answer, or None."""
    if not node.callbacks.get(CallbackPoint.BEFORE_MODEL):
        return None
    answer = await finish_despite_interruption(
        run, run.code.callbacks(run.invocation(node), CallbackPoint.BEFORE_MODEL, {"llm_request": request.as_plain()})
    )
    actions.merge(answer.actions)
    raise_error(answer)
    if answer.returned and not answer.returned.get("partial"):
        return _with_ids(run, answer.returned)
    if answer.returned:
        # A `partial` answer is spoken at once, to cover the wait; the model is asked all the same.
        run.append(Event(node.name, _with_ids(run, answer.returned)))
    request.apply_changes(answer.payload.get("llm_request") or request.as_plain())
    return None


async def _ask_model(run: Run, node: LlmNode, request: ModelRequest, actions: Actions) -> tuple[Content, bool]:
    """Ask the model and run the after-model callbacks; return the answer and whether it has been spoken already."""
    run.observe(request)
    has_callbacks = bool(node.callbacks.get(CallbackPoint.AFTER_MODEL))
    answer = Answer(asyncio.get_running_loop().time())
    # Parallel branches would speak across each other, and callbacks may still replace the answer.
    answer.speaks_sentences = run.speaks and not run.branch and not has_callbacks and node.output_schema is None
    try:
        await _stream(run, request, answer)
    except AnswerWithheld as error:
        # The words that the caller has heard cannot be taken back, so the history must contain them.
        if answer.speaks_sentences and answer.parts:
            _append_spoken(run, node, answer, Actions())
        content = await finish_despite_interruption(run, run.code.replace_withheld(run.invocation(node)))
        if content is None:
            raise RunFailed(type(error).__name__, str(error)) from None
        return _with_ids(run, content), False
    except asyncio.CancelledError:
        # The caller has interrupted. `Conversation.correct` cuts the text to what was heard.
        _append_spoken(run, node, answer, actions)
        raise
    except RunFailed:
        if answer.sentences:
            # Without the unfinished last sentence, which was never spoken.
            answer.parts = [{"text": " ".join(answer.sentences)}]
            _append_spoken(run, node, answer, Actions())
        raise
    if not has_callbacks:
        return answer.content, answer.speaks_sentences
    payload = {"llm_response": {"content": answer.content}}
    after = await finish_despite_interruption(
        run, run.code.callbacks(run.invocation(node), CallbackPoint.AFTER_MODEL, payload)
    )
    actions.merge(after.actions)
    raise_error(after)
    changed = (after.payload.get("llm_response") or {}).get("content") or answer.content
    return _with_ids(run, after.returned or changed), False


def _append_spoken(run: Run, node: LlmNode, answer: Answer, actions: Actions) -> None:
    """Append an event with `actions`, and with the text of an unfinished answer if it was being spoken."""
    content = {"role": "model", "parts": [part for part in answer.parts if "text" in part]}
    run.append(
        Event(node.name, content if content["parts"] and answer.speaks_sentences else None, actions), spoken=True
    )


async def _stream(run: Run, request: ModelRequest, answer: Answer) -> None:
    """Stream the model's answer, speaking its sentences. Raises `AnswerWithheld`, and `RunFailed` for other errors."""
    loop = asyncio.get_running_loop()
    error: ProviderError | None = None
    stream = run.model.stream(
        request.messages(), [tool.for_model for tool in request.tools.values()], request.settings(run.settings.models)
    )
    try:
        await _speak_stream(run, stream, answer)
    except ProviderError as raised:
        error = raised
    # Observers are told of every answer, failed ones included, before the error goes on.
    text = f"{type(error).__name__}: {error}" if error else None
    usage = answer.usage
    tokens = usage.input_tokens, usage.output_tokens
    run.emit(ModelAnswered(answer.requested, answer.first_token, loop.time(), *tokens, text, answer.calls))
    if isinstance(error, AnswerWithheld):
        raise error
    if error is not None:
        raise RunFailed(type(error).__name__, str(error))


async def _speak_stream(run: Run, stream: AsyncGenerator[Delta, None], answer: Answer) -> None:
    """Add the pieces of a stream to the answer as they come; speak each sentence as soon as it is complete."""
    loop = asyncio.get_running_loop()
    # Closing the stream frees the provider's connection, also when an interruption cancels this task.
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            new_id = f"call-{run.conversation.new_number()}" if delta.tool_call else ""
            _speak(run, answer, answer.feed(delta, loop.time(), new_id))
    _speak(run, answer, answer.splitter.finish())


def _speak(run: Run, answer: Answer, sentences: Sequence[str]) -> None:
    if answer.speaks_sentences:
        answer.sentences += sentences
        for sentence in sentences:
            run.say(sentence)


def _with_ids(run: Run, content: PlainObject) -> Content:
    """Return a callback's content with an identifier in every tool call."""
    made = []
    for part in content.get("parts") or ():
        call = part.get("function_call")
        if call and not call.get("id"):
            part = {**part, "function_call": {**call, "id": f"call-{run.conversation.new_number()}"}}
        made.append(part)
    return {"role": content.get("role") or "model", "parts": made}
