"""Language models in order of preference: if one fails or does not begin to answer in time, the next one is asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

from callagent.errors import AnswerWithheld, ProviderError, ProviderTimeout
from callagent.failover import Lineup, Member, is_alarm
from callagent.log import get_logger
from callagent.models.protocol import Delta, LanguageModel, Message, ModelSettings, Tool, for_call
from callagent.models.providers import declarations

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AnswerTimeouts:
    """Seconds that a model of a line-up gets."""

    fallback_after: float = 2.5
    """To begin its answer, if another model could be asked after it."""
    first_token: float = 6.0
    """To begin its answer, if it is the last one."""
    next_token: float = 2.0
    """From one piece of its answer to the next."""


_SENTENCE_ENDS = re.compile(r"[.!?…:;。！？]['\")\]]*\s|\n")


class _SentenceGate:
    """A gate that holds the text of an answer back until a sentence ends.

    If the model fails within a sentence, the caller has heard nothing of that sentence, and another model can say it.
    """

    def __init__(self) -> None:
        self._text = ""
        self.passed_text = ""
        """The text that was passed on and that the caller hears."""
        self.has_called = False
        """Whether a function call was passed on, whose effects cannot be taken back."""

    def feed(self, delta: Delta) -> list[Delta]:
        """Return the deltas that may be passed on now. A function call passes at once, with all text before it."""
        self._text += delta.text
        ends = [match.end() for match in _SENTENCE_ENDS.finditer(self._text)]
        # The text before a call passes even if it is not a whole sentence.
        end = len(self._text) if delta.tool_call else ends[-1] if ends else 0
        text, self._text = self._text[:end], self._text[end:]
        if not text and delta.tool_call is None and delta.usage is None:
            return []
        self.passed_text += text
        self.has_called = self.has_called or delta.tool_call is not None
        return [replace(delta, text=text)]

    def rest(self) -> list[Delta]:
        """Return the text that is held back; call this at the end of the answer."""
        text, self._text = self._text, ""
        self.passed_text += text
        return [Delta(text=text)] if text else []


class _RepetitionFilter:
    """A filter of sentences that the caller has heard: a model that continues an answer may repeat them."""

    def __init__(self, heard_text: str) -> None:
        self._heard = {_normalise(sentence) for sentence in _sentences(heard_text)}

    def new_parts(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return the deltas without the sentences that the caller has heard."""
        return [new for delta in deltas if (new := self._new_part(delta)) is not None]

    def _new_part(self, delta: Delta) -> Delta | None:
        """Return the new part of a delta; None: it has none."""
        while self._heard and delta.text.strip():
            first = _sentences(delta.text)[0]
            if _normalise(first) not in self._heard:
                # A repetition that follows a new sentence is intended.
                self._heard.clear()
            else:
                delta = replace(delta, text=delta.text.lstrip()[len(first) :])
        return delta if delta.text or delta.tool_call or delta.usage else None


class FailoverModel:
    """Models in order of preference. Breakers, which all calls share, keep failing models from being asked."""

    def __init__(
        self, models: Sequence[tuple[str, LanguageModel]], timeouts: AnswerTimeouts = AnswerTimeouts()
    ) -> None:
        """`models`: models and their names in the settings. One without a provider in its name runs on this machine."""
        self._timeouts = timeouts
        members = [Member(name, model, embedded=name.partition("/")[0] not in declarations()) for name, model in models]
        self.lineup = Lineup("model", members)
        self._server_lineup = self.lineup
        """The server's line-up, which counts outages, also those in a call's view."""

    def for_call(self) -> LanguageModel:
        """Return a view for one call: each model's view of the call, with the breakers that all calls share."""
        view = copy(self)
        members = [replace(member, provider=for_call(member.provider)) for member in self.lineup.members]
        view.lineup = Lineup("model", members)
        return view

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Answer as `LanguageModel` does. If an answer stops, the next model gives the rest.

        After a tool call no other model is asked: the tool's effects cannot be taken back, nor must they happen twice.
        """
        failure: ProviderError | None = None
        heard_text = ""
        for index, member in enumerate(self.lineup.members):
            if not self.lineup.may_ask(member, _now()):
                continue
            # `settings.model` names a model of the first provider; the others answer with their configured ones.
            own_settings = replace(settings, model="") if index else settings
            is_continuation = heard_text and not member.embedded
            own_messages = _ask_for_rest(messages, heard_text) if is_continuation else messages
            answer = member.provider.stream(own_messages, tools, own_settings)
            gate, repetitions = _SentenceGate(), _RepetitionFilter(heard_text)
            try:
                async for delta in self._deltas(answer, member, gate, repetitions):
                    yield delta
                member.breaker.succeed()
                return
            except (ProviderError, TimeoutError) as error:
                if settings.safety and isinstance(error, AnswerWithheld):
                    # Another model may have no such filter, and would say what this one withheld.
                    member.breaker.succeed()
                    raise
                failure = _as_provider_error(error, member)
                self._note_failure(member, failure)
                if gate.has_called:
                    raise failure from None
                heard_text += gate.passed_text
            finally:
                await answer.aclose()
        self._server_lineup.outages += 1
        log.error("provider_outage", role="model")
        raise failure or ProviderError("every model has failed lately, and none is asked for a while")

    async def _deltas(
        self,
        answer: AsyncIterator[Delta],
        member: Member[LanguageModel],
        gate: _SentenceGate,
        repetitions: _RepetitionFilter,
    ) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of one model's answer that may be passed on. Raises `ProviderError` and `TimeoutError`."""
        has_begun = False
        while (delta := await self._next(answer, member, has_begun=has_begun)) is not None:
            has_begun = True
            for part in repetitions.new_parts(gate.feed(delta)):
                yield part
        for part in repetitions.new_parts(gate.rest()):
            yield part

    async def _next(
        self, answer: AsyncIterator[Delta], member: Member[LanguageModel], *, has_begun: bool
    ) -> Delta | None:
        """Return the next step of an answer; None at its end. Raises `TimeoutError`."""
        is_last = member is self.lineup.members[-1]
        seconds = self._timeouts.first_token if is_last else self._timeouts.fallback_after
        if has_begun:
            seconds = self._timeouts.next_token
        async with asyncio.timeout(None if self.lineup.is_patient(member) else seconds):
            return await anext(answer, None)

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()

    def _note_failure(self, member: Member[LanguageModel], error: ProviderError) -> None:
        self.lineup.fail(member, error, _now())
        level = log.error if is_alarm(error) else log.warning
        level("provider_failed", role="model", provider=member.name, error=str(error))


def _as_provider_error(error: ProviderError | TimeoutError, member: Member[LanguageModel]) -> ProviderError:
    if isinstance(error, ProviderError):
        return error
    return ProviderTimeout(f"the model '{member.name}' did not begin its answer, or go on with it, in time")


def _ask_for_rest(messages: Sequence[Message], heard_text: str) -> Sequence[Message]:
    """Return the conversation with the instruction to go on after `heard_text`, which the caller has heard."""
    note = (
        f"You have begun your answer already; the caller has heard this part of it: {json.dumps(heard_text.strip())}\n"
        "Give only the rest of the answer. Repeat nothing of that part."
    )
    first = messages[0] if messages else None
    if first is not None and first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{note}"}, *messages[1:]]
    return [{"role": "system", "content": note}, *messages]


def _sentences(text: str) -> list[str]:
    """Return the text's sentences, without leading white space."""
    ends = [match.end() for match in _SENTENCE_ENDS.finditer(text)]
    bounds = [0, *ends, len(text)]
    return [text[start:end].lstrip() for start, end in pairwise(bounds) if text[start:end].strip()]


def _normalise(sentence: str) -> str:
    # Two models may write the same sentence with different punctuation and capitals.
    return "".join(letter for letter in sentence.casefold() if letter.isalnum())


def _now() -> float:
    return asyncio.get_running_loop().time()
