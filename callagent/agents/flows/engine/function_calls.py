"""Project functions of one call: they run in the call's worker, and their answers are applied to the conversation.

Functions of MCP (Model Context Protocol) servers are called from the worker, too. The core reads the secrets, so that
project code needs no access to their folder.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

from callagent.agents import actions
from callagent.agents.flows import format
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.decision import Decision, HandoffRequest, Transition, decide, resolve_transition
from callagent.agents.flows.engine.prompt import resolve_header, resolve_text, scope_of
from callagent.agents.flows.external_events import handoff_data
from callagent.agents.flows.messages import queued_email, queued_message
from callagent.agents.kernel import SECRET_NAME, tool_name
from callagent.agents.protocol import Emit
from callagent.errors import ProviderError, ProviderTimeout, WorkerError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, number_at, object_at, objects_at
from callagent.log import get_logger
from callagent.models import LanguageModel, Message, ModelSettings
from callagent.workers import Lease, Plain

log = get_logger(__name__)
REMOTE = "remote"
"""The kind of a function that an MCP server runs; its `flow` is the server's provider_id."""
MAX_LIST_SECONDS = 60.0
"""Deadline for the function lists of all MCP servers, before the first call."""
SURVEY_FLOWS = ("csat", "csat_flow", "csat_survey")
"""Folders of a project's customer satisfaction survey (CSAT); the first flow in one of them is used."""
_MAX_LOGS = 200
"""Log entries of one function that the record keeps."""
_MAX_SECRET = 1024 * 1024
"""Characters of a secret's file that are read."""


@dataclass(slots=True)
class FunctionAnswer:
    """A function's answer. With `error` set, the effects that it had before still stand."""

    data: JsonObject
    """The worker's answer as `runtime/__init__.py` describes it; empty where the worker was lost."""
    error: str | None
    duration_ms: float
    logs: list[JsonObject] = field(default_factory=list)

    @property
    def effects(self) -> JsonObject:
        return object_at(self.data, "effects")

    @property
    def returned(self) -> JsonValue:
        return self.data.get("returned")

    @property
    def state_changes(self) -> JsonObject:
        return object_at(self.data, "state_changes")


class FunctionRunner:
    """Runs functions in the worker of one call and answers the requests that they make meanwhile."""

    def __init__(
        self, lease: Lease, conversation: Conversation, model: LanguageModel, real_time: format.RealTimeConfiguration
    ) -> None:
        self._lease = lease
        self._conversation = conversation
        self._model = model
        self._real_time = real_time

    async def run(
        self,
        function: format.ProjectFunction,
        arguments: JsonObject,
        *,
        timeout: float | None = None,
        attempt: int = 1,
    ) -> FunctionAnswer:
        """Run a function to its end or its deadline. Never raises for what project code does."""
        conceal = self._conversation.vault.conceal
        logs: list[JsonObject] = []

        def on_message(message: Plain) -> Awaitable[object] | None:
            return self._on_message(message, logs)

        request: Plain = {
            "op": "run",
            "function": {"kind": function.kind, "flow": function.flow, "name": function.name},
            "arguments": dict(arguments),
            "conv": {**self.snapshot(), "attempt": attempt},
        }
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            data = await self._lease.run(request, timeout=timeout or self._timeout(function), on_message=on_message)
        except WorkerError as error:
            milliseconds = (loop.time() - started) * 1000
            kind, detail = type(error).__name__, conceal(str(error))
            log.warning("function_failed", function=function.name, error=detail, kind=kind)
            return FunctionAnswer({}, f"{kind}: {detail}", milliseconds, logs)
        # From here on the secure digits that the function was given are concealed, from the record and the model too.
        data = conceal(data)
        milliseconds = number_at(data, "duration_ms") or (loop.time() - started) * 1000
        answer = FunctionAnswer(data, _error_text(data), milliseconds, logs or objects_at(data, "logs"))
        self._store_state(answer.data)
        self._log_error(function, answer)
        return answer

    def _log_error(self, function: format.ProjectFunction, answer: FunctionAnswer) -> None:
        if answer.error:
            traceback = object_at(answer.data, "error").get("traceback")
            log.warning("function_raised", function=function.name, error=answer.error, traceback=traceback)

    def _store_state(self, answer: JsonObject) -> None:
        # The whole state replaces the stored one: the worker owns it, and this copy serves prompts and record.
        if isinstance(state := answer.get("state"), dict):
            self._conversation.state = dict(state)

    async def set_state(self, values: JsonObject) -> None:
        """Write to `conv.state` from outside a function. A lost worker is logged and does not end the call."""
        self._conversation.state.update(values)
        request: Plain = {"op": "set_state", "values": dict(values)}
        try:
            answer = await self._lease.run(
                request, timeout=self._conversation.settings.function_timeout, on_message=lambda message: None
            )
        except WorkerError as error:
            log.warning("state_not_set", error=str(error))
            return
        self._store_state(answer)

    async def close(self) -> None:
        await self._lease.close()

    def snapshot(self) -> Plain:
        """Return the call as plain data: what the worker's `conv` shows (see `runtime/__init__.py`)."""
        c, project, info = self._conversation, self._conversation.project, self._conversation.info
        environment = c.settings.environment
        return {
            "id": info.call_id,
            "env": environment,
            "channel_type": c.channel_type,
            "caller_number": info.caller,
            "callee_number": info.callee,
            "sip_headers": dict(info.headers),
            "end_headers": dict(c.end_headers),
            "integration_attributes": c.settings.integration_attributes,
            "current_flow": c.position.flow,
            "current_step": c.position.step,
            "language": c.language,
            "voice": dict(c.voice) if c.voice else None,
            "variant_name": c.variant,
            "variants": {name: dict(values) for name, values in project.variants.attributes.items()},
            "history": c.history.plain(),
            "entities": {
                name: {"value": r.value, "valid": r.valid, "type": r.type, "error": r.error}
                for name, r in c.entities.items()
            },
            "transcript_alternatives": list(c.alternatives),
            "metric_events": [dict(metric) for metric in c.metrics],
            "generic_external_events": c.external_events,
            "real_time_config": self._real_time.read_data(environment),
            "handoffs": {target.name: _handoff_as_json(target) for target in project.handoffs.values()},
            "sms_templates": {
                template.name: {"content": template.text, "phone_number": template.senders.get(environment, "")}
                for template in project.sms_templates.values()
            },
            "translations": {key: dict(texts) for key, texts in project.translations.items()},
        }

    def _timeout(self, function: format.ProjectFunction) -> float:
        settings = self._conversation.settings
        # These functions may take longer: the caller hears delay responses, or another server has to answer.
        slow = function.latency or function.kind == REMOTE
        return settings.slow_function_timeout if slow else settings.function_timeout

    def _on_message(self, message: Plain, logs: list[JsonObject]) -> Awaitable[object] | None:
        """Handle a message of the running function (`runtime/__init__.py` lists them); return its answer, if any."""
        conversation = self._conversation
        message = conversation.vault.conceal(message)
        match message.get("type"):
            case "metric":
                once = bool(message.get("write_once"))
                return conversation.write_metric(str(message.get("name")), message.get("value"), write_once=once)
            case "external_event":
                return self._expect_event(bool(message.get("send_to_llm")))
            case "secret":
                return read_secret(conversation.settings.secrets_dir, str(message.get("name")))
            case "prompt_llm":
                return self._prompt_llm(message)
            # Beyond the bound entries are dropped: a function in a loop must not fill the record.
            case "log" | "output" if len(logs) < _MAX_LOGS:
                logs.append({key: value for key, value in message.items() if key not in ("type", "ask")})
        return None

    async def _expect_event(self, send_to_llm: bool) -> str:
        """Return an identifier for an external event. Raises `TooManyEvents`."""
        return self._conversation.expect_event(send_to_llm=send_to_llm)

    async def _prompt_llm(self, message: JsonObject) -> JsonValue:
        """Answer a request of project code to the model. Raises `ProviderError`."""
        settings = self._conversation.settings
        wants_json = bool(message.get("return_json"))
        messages: list[Message] = []
        # References in the history stay unresolved, because the function's own prompt is not resolved either.
        if message.get("show_history"):
            messages += self._conversation.history.messages(str, "")
        messages.append({"role": "user", "content": str(message.get("prompt") or "")})
        options = ModelSettings(settings.models.get(str(message.get("model")), ""), json_output=wants_json)
        try:
            async with asyncio.timeout(settings.model_timeout):
                text = await self._collect_answer(messages, options)
        except TimeoutError as error:
            raise ProviderTimeout("the model did not answer in time") from error
        return _parse_json(text) if wants_json else text

    async def _collect_answer(self, messages: list[Message], options: ModelSettings) -> str:
        text = ""
        async with aclosing(self._model.stream(messages, [], options)) as deltas:
            async for delta in deltas:
                text += delta.text
        return text


def _handoff_as_json(target: format.HandoffTarget) -> Plain:
    return {
        "is_default": target.is_default,
        "method": target.method,
        "phone_number": target.number,
        "sip_headers": dict(target.headers),
        "description": target.description,
    }


def _parse_json(text: str) -> JsonValue:
    """Parse a model's answer as JSON, with or without Markdown fences around it. Raises `ProviderError`."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    try:
        value: JsonValue = json.loads(fenced.group(1) if fenced else text)
    except json.JSONDecodeError as error:
        raise ProviderError(f"the model's answer is not JSON: {error}") from error
    return value


def _error_text(data: JsonObject) -> str | None:
    error = data.get("error")
    if not error:
        return None
    if isinstance(error, Mapping):
        return f"{error.get('type')}: {error.get('message')}"
    return str(error)


async def read_secret(folder: str | None, name: str) -> str | None:
    """Return the text of the file `name` in `folder`; None where there is none."""
    # Project code chooses the name: the pattern keeps the path inside the folder.
    if folder is None or not SECRET_NAME.fullmatch(name):
        return None
    return await asyncio.to_thread(_read, Path(folder, name))


def _secrets_handler(folder: str | None) -> Callable[[Plain], Awaitable[object] | None]:
    """Return a message handler for a worker outside a call; it answers requests for secrets only."""

    def on_message(message: Plain) -> Awaitable[object] | None:
        return read_secret(folder, str(message.get("name"))) if message.get("type") == "secret" else None

    return on_message


def _read(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return file.read(_MAX_SECRET).strip()


async def fetch_remote_functions(
    lease: Lease, taken: Container[str], secrets_dir: str | None = None
) -> dict[str, format.ProjectFunction]:
    """Ask the MCP servers for their functions; return them by the name the model sees. A server that fails is logged.

    `taken` holds the names of the project's own functions, which a server's function cannot have.
    """
    try:
        answer = await lease.run(
            {"op": "describe_remote"}, timeout=MAX_LIST_SECONDS, on_message=_secrets_handler(secrets_dir)
        )
    except WorkerError as error:
        log.error("mcp_functions_not_listed", error=str(error))
        return {}
    for failure in objects_at(answer, "failures"):
        log.error("mcp_server_failed", server=failure["provider"], error=failure["error"])
    return _by_unique_name(objects_at(answer, "functions"), taken)


def _by_unique_name(described: Iterable[JsonObject], taken: Container[str]) -> dict[str, format.ProjectFunction]:
    found: dict[str, format.ProjectFunction] = {}
    for each in described:
        name, provider = str(each["name"]), str(each["provider"])
        # A second function of the same name is shown with its server's name before its own.
        shown = name if name not in taken and name not in found else tool_name(provider, name)
        description, schema = str(each["description"]), object_at(each, "parameters")
        found[shown] = format.ProjectFunction(name, REMOTE, provider, format.MCP_FILE, 1, description, schema=schema)
    return found


def send_messages(conversation: Conversation) -> None:
    """Send the messages that functions queued; templates are rendered with the present state."""
    scope = scope_of(conversation)
    for entry in conversation.unsent_messages:
        template = str(entry.get("template") or "")
        if entry.get("kind") == "email":
            message = queued_email(entry)
        elif template in conversation.project.sms_templates:
            message = queued_message(entry, resolve_text(conversation.project.sms_templates[template].text, scope))
        else:
            message = queued_message(entry, str(entry.get("content") or ""))
        retries = entry.get("retry_count")
        conversation.outbox.post(message, template=template, retries=retries if isinstance(retries, int) else None)
    conversation.unsent_messages = []


class FunctionCalls:
    """Calls functions and applies their answers. A function may outlive the turn that called it."""

    def __init__(self, conversation: Conversation, runner: FunctionRunner) -> None:
        self.conversation = conversation
        self.runner = runner
        self.running: asyncio.Task[Decision] | None = None
        """The function that runs now."""
        self.handoff_metrics: asyncio.Task[None] | None = None
        """Writes the metrics of the handoff that was noted last."""
        self.random = random.Random(conversation.info.call_id)
        """Shuffles fillers and delay responses: in the same order when a call is replayed."""

    async def call(
        self,
        function: format.ProjectFunction,
        arguments: JsonObject,
        emit: Emit,
        call_id: str | None = None,
        *,
        timeout: float | None = None,
    ) -> Decision:
        """Run a function, apply its answer, and return its decision; the turn says its words and may end the call.

        `call_id` is the model's tool call that the result answers; None: the model did not call it. Cancelling this
        coroutine does not cancel the function: it runs to its end, and its effects are applied.
        """
        self.conversation.functions += 1
        number = self.conversation.functions
        # A task of its own, because an interrupted turn must not cancel its function.
        running = self.running = asyncio.create_task(self._run(function, arguments, number, call_id, timeout))
        running.add_done_callback(self._note_end)
        emit(actions.FunctionStarted(number, function.name, dict(arguments), self._latency_control(function)))
        return await asyncio.shield(running)

    async def wait_for_running(self) -> None:
        """Wait for what an interrupted turn left: a function, until its deadline at most, or a handoff's metrics."""
        left = {task for task in (self.running, self.handoff_metrics) if task is not None and not task.done()}
        if left:
            # Unlike `await running`, wait() does not cancel the function when the waiting turn is interrupted too.
            await asyncio.wait(left)

    def _note_end(self, ended: asyncio.Task[Decision]) -> None:
        if self.running is ended:
            self.running = None
        if not ended.cancelled() and (error := ended.exception()) is not None:
            # The turn that called the function may have been interrupted, and then nobody else sees the error.
            log.error("function_answer_not_applied", error=repr(error))

    async def _run(
        self,
        function: format.ProjectFunction,
        arguments: JsonObject,
        number: int,
        call_id: str | None,
        timeout: float | None,
    ) -> Decision:
        answer = await self.runner.run(function, self.conversation.vault.reveal(arguments), timeout=timeout)
        # No await from here to the end: an answer is applied as a whole, or not at all.
        conversation = self.conversation
        if answer.error is not None:
            decision = Decision(content=f"Error: the function {function.name} failed: {answer.error}")
        else:
            decision = self._refuse_unknown_handoff(decide(answer.data))
        conversation.events.append(
            actions.FunctionEnded(
                number=number,
                name=function.name,
                arguments=dict(arguments),
                result=answer.returned,
                error=answer.error,
                duration_ms=answer.duration_ms,
                logs=tuple(answer.logs),
                state_changes=answer.state_changes,
                transition=decision.transition.as_json() if decision.transition else None,
            )
        )
        if refused := self._apply_queued(answer.effects):
            decision = replace(decision, content="\n".join(filter(None, (decision.content, *refused))))
        self.apply(self._with_survey(decision, answer.effects))
        if call_id is not None:
            conversation.history.add_answer(call_id, decision.content)
        # A function step answers no tool call of the model: its result becomes a note.
        elif decision.content:
            conversation.history.add_note(decision.content)
        return decision

    def _latency_control(self, function: format.ProjectFunction) -> actions.LatencyControl | None:
        """Return the function's latency control with the texts resolved and, where the function asks, shuffled."""
        control = function.latency
        if control is None:
            return None
        scope = scope_of(self.conversation)
        responses = [actions.DelayResponse(resolve_text(r.text, scope), r.duration) for r in control.responses]
        if function.randomize:
            self.random.shuffle(responses)
        return actions.LatencyControl(control.delay_before_start, control.silence_after_each, tuple(responses))

    def apply(self, decision: Decision) -> None:
        """Apply variant, language, voice and position; words, handoff and hang-up are left to the turn."""
        conversation = self.conversation
        # An unknown variant would leave every attribute empty, so it is ignored.
        if decision.variant in conversation.project.variants.attributes:
            conversation.variant = decision.variant
        # An action only for a change, because the call changes recogniser and voice with it.
        if decision.language and decision.language != conversation.language:
            conversation.language = decision.language
            conversation.events.append(actions.SetLanguage(decision.language))
        if decision.voice:
            conversation.voice = decision.voice
            provider, name = (str(decision.voice.get(key) or "") for key in ("provider", "provider_voice_id"))
            conversation.events.append(actions.SetVoice(provider, name))
        self.follow_transition(decision.transition)
        # A handoff or hang-up survives an interruption: the next turn carries it out.
        conversation.unfinished = decision if decision.ends_call else None

    def follow_transition(self, transition: Transition) -> None:
        """Move to where a transition leads. One that leads nowhere is logged, and the call stays where it is."""
        conversation = self.conversation
        result = resolve_transition(conversation.project, conversation.position, transition)
        if result.problem:
            log.error("transition_refused", problem=result.problem, flow=conversation.position.flow)
        if result.moved:
            log.debug("step_entered", old=str(conversation.position), new=str(result.position))
            conversation.position = result.position
            conversation.events.append(actions.StepEntered(result.position.flow, result.position.step))

    async def begin_handoff(self, request: HandoffRequest) -> actions.Handoff:
        """Return the action for a handoff to a known destination; note it in the record and in two metrics.

        A turn that is interrupted meanwhile leaves the handoff to the next turn, which notes it no second time.
        """
        conversation = self.conversation
        target = format.find_handoff(conversation.project.handoffs, request.destination)
        destination = target.name if target else str(request.destination or "")
        reason = request.reason or destination
        scope = scope_of(conversation)
        headers = {**(dict(target.headers) if target else {}), **request.headers}
        # A header whose variable has no value is left out: its receiver would read the variable's name.
        resolved = {name: resolve_header(value, scope) for name, value in headers.items()}
        self._note_handoff(destination, reason)
        if self.handoff_metrics is not None:
            # The metrics are durable before the call is given away. An interruption does not cancel their writing.
            await asyncio.shield(self.handoff_metrics)
        return actions.Handoff(
            destination=destination,
            reason=reason,
            method=request.method or (target.method if target else "bye"),
            number=request.number or (target.number if target else None),
            headers={name: text for name, text in resolved.items() if text is not None},
        )

    def _note_handoff(self, destination: str, reason: str) -> None:
        """Note a handoff in the record and for the handoff API, and begin to write its metrics, unless that is done."""
        conversation = self.conversation
        noted: MutableJsonObject = {"destination": destination, "reason": reason}
        if conversation.handoff == noted:
            return
        # Noted before the metrics are awaited: the record and the end function have it even if the call ends now.
        conversation.handoff = noted
        shared = handoff_data(conversation.project.experimental.section("handoff_api"), conversation.state)
        if shared is not None:
            conversation.settings.external.store_handoff(conversation.info.call_id, *shared)
        self.handoff_metrics = asyncio.create_task(self._write_handoff_metrics(destination, reason))

    async def _write_handoff_metrics(self, destination: str, reason: str) -> None:
        await self.conversation.write_metric("HANDOFF_TO", destination)
        await self.conversation.write_metric("HANDOFF_REASON", reason)

    def _with_survey(self, decision: Decision, effects: JsonObject) -> Decision:
        """Follow `conv.goto_csat_flow()` to the project's own survey flow; the platform's is not available here."""
        # A transition that the function has chosen wins.
        if not effects.get("goto_csat_flow") or decision.transition:
            return decision
        flows = self.conversation.project.flows.values()
        survey = next((flow.name for flow in flows if flow.folder in SURVEY_FLOWS), None)
        if survey is None:
            log.error("survey_flow_missing", remedy=f"the project needs a flow called one of {', '.join(SURVEY_FLOWS)}")
            return decision
        return replace(decision, transition=Transition(goto_flow=survey))

    def _refuse_unknown_handoff(self, decision: Decision) -> Decision:
        """Turn a handoff to an unknown destination into an error for the model, so that the call goes on."""
        request = decision.handoff
        # A handoff with a number needs no known destination, nor does `bye`, which only ends the call with its headers.
        if request is None or request.number or request.method == "bye":
            return decision
        if format.find_handoff(self.conversation.project.handoffs, request.destination) is not None:
            return decision
        log.error("handoff_unknown", destination=request.destination)
        return replace(decision, handoff=None, content=f"Error: there is no handoff '{request.destination}'.")

    def _apply_queued(self, effects: JsonObject) -> list[str]:
        """Apply effects that a function queued by methods of `conv`; return reasons of refusals, for the model."""
        conversation = self.conversation
        # None: the method was not called. An empty list: it was called, and clears what was set before.
        if effects.get("disabled_topics") is not None:
            conversation.disabled_topics = tuple(str(name) for name in list_at(effects, "disabled_topics"))
        if effects.get("asr_biasing") is not None:
            keywords = list_at(object_at(effects, "asr_biasing"), "keywords")
            conversation.keywords = tuple(str(word) for word in keywords)
        if track := object_at(effects, "background_track"):
            conversation.events.append(format.read_background(track))
        if shown := object_at(effects, "shown"):
            suggestions = [str(each) for each in list_at(shown, "suggestions")]
            attachments, call_actions = objects_at(shown, "attachments"), objects_at(shown, "call_actions")
            conversation.events.append(actions.Attach(attachments, suggestions, call_actions))
        if effects.get("discard_recording"):
            conversation.events.append(actions.ControlRecording("discard"))
        return conversation.queue_messages(effects)
