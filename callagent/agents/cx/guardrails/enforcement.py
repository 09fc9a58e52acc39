"""An app's guardrails on a call: which of them what was said triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callagent.agents.cx.guardrails.guardrail import Guardrail
from callagent.agents.cx.guardrails.llm_policy import ask, triggers
from callagent.agents.tree import CallbackPoint, Conversation, Invocation, ProjectCode, as_messages, texts
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.models.protocol import LanguageModel, ModelSettings

log = get_logger(__name__)
_MESSAGES = 20
_NOT_SAID = ("<event>", "<context>")
"""Turns that are not the caller's words."""
Plain = Mapping[str, Any]


class Gate:
    def __init__(self, worker: ProjectCode, conversation: Conversation, model: LanguageModel) -> None:
        self._worker = worker
        self._conversation = conversation
        self._model = model

    def nested(self, worker: ProjectCode, conversation: Conversation) -> Gate:
        return Gate(worker, conversation, self._model)

    async def stops_caller(
        self, invocation: Invocation, guardrails: Sequence[Guardrail], subject: Plain, said: str
    ) -> Guardrail | None:
        """The first that the caller's words trigger."""
        for guardrail in guardrails:
            if (
                guardrail.bans_input(said)
                or await self._code(invocation, CallbackPoint.BEFORE_MODEL, guardrail, subject)
                or await self._policy(guardrail, said, by_caller=True)
            ):
                return guardrail
        return None

    async def stops_answer(
        self, invocation: Invocation, guardrails: Sequence[Guardrail], subject: Plain, said: str
    ) -> Guardrail | None:
        """The first that the model's words trigger."""
        for guardrail in guardrails if said else ():
            if (
                guardrail.bans_answer(said)
                or await self._code(invocation, CallbackPoint.AFTER_MODEL, guardrail, subject)
                or await self._policy(guardrail, said, by_caller=False)
            ):
                return guardrail
        return None

    async def answer_by(self, prompt: str) -> str:
        """What the model answers by another instruction to the conversation so far; empty: nothing in time."""
        spoken = [event.content for event in self._conversation.events[-_MESSAGES:] if texts(event.content)]
        messages = [{"role": "system", "content": prompt}, *as_messages([each for each in spoken if each])]
        try:
            return (await ask(self._model, messages, ModelSettings())).strip()
        except (ProviderError, TimeoutError) as error:
            log.warning("guardrail_not_answered", error=f"{type(error).__name__}: {error}")
            return ""

    async def _policy(self, guardrail: Guardrail, said: str, *, by_caller: bool) -> bool:
        policy = guardrail.policy
        if policy is None or not said.strip() or (by_caller and said.startswith(_NOT_SAID)):
            return False
        return await triggers(policy, self._model, self._conversation.events, said, by_caller=by_caller)

    async def _code(self, invocation: Invocation, point: CallbackPoint, guardrail: Guardrail, subject: Plain) -> bool:
        """Whether a guardrail's own code says so; code that fails triggers nothing."""
        points = (
            [CallbackPoint.BEFORE_AGENT, CallbackPoint.BEFORE_MODEL]
            if point is CallbackPoint.BEFORE_MODEL
            else [point, CallbackPoint.AFTER_AGENT]
        )
        for each in points:
            code = guardrail.callbacks.get(each.value)
            if code is None:
                continue
            more = {"code": code.file, "function": f"{each.value}_callback"}
            answer = await self._worker.callbacks(invocation, each, {**subject, **more})
            decided = answer.returned if isinstance(answer.returned, dict) else {}
            if str(decided.get("decision")).upper() == "TRIGGER":
                return True
        return False
