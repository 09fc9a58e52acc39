"""Run one project function in the call's worker and collect its effects."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.remote_functions import REMOTE, read_secret
from callagent.agents.flows.format import HandoffTarget, ProjectFunction, RealTimeConfiguration
from callagent.errors import ProviderError, ProviderTimeout, WorkerError
from callagent.log import get_logger
from callagent.models import LanguageModel, Message, ModelSettings
from callagent.workers import Lease, Plain

log = get_logger(__name__)
_MAX_LOGS = 200


@dataclass(slots=True)
class FunctionAnswer:
    """A function's answer. With `error` set, the effects that it had before still stand."""

    data: Mapping[str, Any]
    error: str | None
    duration_ms: float
    logs: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def effects(self) -> Mapping[str, Any]:
        return self.data.get("effects") or {}

    @property
    def returned(self) -> Any:
        return self.data.get("returned")

    @property
    def state_changes(self) -> Mapping[str, Any]:
        return self.data.get("state_changes") or {}


class FunctionRunner:
    """Runs functions in the worker of one call and answers the requests that they make meanwhile."""

    def __init__(
        self, lease: Lease, conversation: Conversation, model: LanguageModel, real_time: RealTimeConfiguration
    ) -> None:
        self._lease = lease
        self._conversation = conversation
        self._model = model
        self._real_time = real_time

    async def run(
        self,
        function: ProjectFunction,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        attempt: int = 1,
    ) -> FunctionAnswer:
        """Run a function to its end or its deadline. Never raises for what project code does."""
        logs: list[Mapping[str, Any]] = []

        def on_message(message: Plain) -> Awaitable[Any] | None:
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
            data = self._conversation.vault.conceal(data)
        except WorkerError as error:
            milliseconds = (loop.time() - started) * 1000
            log.warning(
                "function_failed",
                function=function.name,
                error=self._conversation.vault.conceal(str(error)),
                kind=type(error).__name__,
            )
            detail = self._conversation.vault.conceal(f"{type(error).__name__}: {error}")
            return FunctionAnswer({}, detail, milliseconds, logs)
        milliseconds = float(data.get("duration_ms") or (loop.time() - started) * 1000)
        answer = FunctionAnswer(data, _error_text(data), milliseconds, logs or list(data.get("logs") or ()))
        self._take_over(function, answer)
        return answer

    def _take_over(self, function: ProjectFunction, answer: FunctionAnswer) -> None:
        """Keep the state that the function left, also where it raised; log its error."""
        data = answer.data
        if isinstance(data.get("state"), dict):
            self._conversation.state = dict(data["state"])
        if answer.error:
            traceback = (data.get("error") or {}).get("traceback")
            log.warning("function_raised", function=function.name, error=answer.error, traceback=traceback)

    async def set_state(self, values: Mapping[str, Any]) -> None:
        """Write to `conv.state` from outside a function. A lost worker is logged and does not end the call."""
        self._conversation.state.update(values)
        request: Plain = {"op": "set_state", "values": dict(values)}
        try:
            data = await self._lease.run(
                request, timeout=self._conversation.settings.function_timeout, on_message=lambda message: None
            )
        except WorkerError as error:
            log.warning("state_not_set", error=str(error))
            return
        if isinstance(data.get("state"), dict):
            self._conversation.state = dict(data["state"])

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
            "real_time_config": self._real_time.current(environment),
            "handoffs": {target.name: _handoff(target) for target in project.handoffs.values()},
            "sms_templates": {
                template.name: {"content": template.text, "phone_number": template.senders.get(environment, "")}
                for template in project.sms_templates.values()
            },
            "translations": {key: dict(texts) for key, texts in project.translations.items()},
        }

    def _timeout(self, function: ProjectFunction) -> float:
        settings = self._conversation.settings
        slow = function.latency or function.kind == REMOTE
        return settings.slow_function_timeout if slow else settings.function_timeout

    def _on_message(self, message: Plain, logs: list[Mapping[str, Any]]) -> Awaitable[Any] | None:
        message = self._conversation.vault.conceal(message)
        match message.get("type"):
            case "metric":
                return self._conversation.write_metric(
                    str(message.get("name")), message.get("value"), write_once=bool(message.get("write_once"))
                )
            case "external_event":
                return self._expect_event(bool(message.get("send_to_llm")))
            case "secret":
                return read_secret(self._conversation.settings.secrets_dir, str(message.get("name")))
            case "prompt_llm":
                return self._prompt_llm(message)
            case "log" | "output" if len(logs) < _MAX_LOGS:
                logs.append({key: value for key, value in message.items() if key not in ("type", "ask")})
        return None

    async def _expect_event(self, send_to_llm: bool) -> str:
        """Return an identifier for an external event. Raises `TooManyEvents`."""
        return self._conversation.expect_event(send_to_llm=send_to_llm)

    async def _prompt_llm(self, message: Plain) -> Any:
        """Answer a request of project code to the model. Raises `ProviderError`."""
        settings = self._conversation.settings
        wants_json = bool(message.get("return_json"))
        messages: list[Message] = []
        if message.get("show_history"):
            messages += self._conversation.history.messages(str, "")
        messages.append({"role": "user", "content": str(message.get("prompt") or "")})
        options = ModelSettings(settings.models.get(str(message.get("model")), ""), json_output=wants_json)
        try:
            async with asyncio.timeout(settings.model_timeout):
                text = await self._whole_answer(messages, options)
        except TimeoutError as error:
            raise ProviderTimeout("the model did not answer in time") from error
        return _parsed(text) if wants_json else text

    async def _whole_answer(self, messages: list[Message], options: ModelSettings) -> str:
        text = ""
        async with aclosing(cast("Any", self._model.stream(messages, [], options))) as deltas:
            async for delta in deltas:
                text += delta.text
        return text


def _handoff(target: HandoffTarget) -> Plain:
    return {
        "is_default": target.is_default,
        "method": target.method,
        "phone_number": target.number,
        "sip_headers": dict(target.headers),
        "description": target.description,
    }


def _parsed(text: str) -> Any:
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    try:
        return json.loads(fenced.group(1) if fenced else text)
    except json.JSONDecodeError as error:
        raise ProviderError(f"the model's answer is not JSON: {error}") from error


def _error_text(data: Mapping[str, Any]) -> str | None:
    error = data.get("error")
    if not error:
        return None
    if isinstance(error, dict):
        return f"{error.get('type')}: {error.get('message')}"
    return str(error)
