"""Language models in order of preference: one that does not begin to answer in time is followed by the next."""

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
    """Seconds that a model of a line-up has."""

    fallback_after: float = 2.5
    """To begin its answer, where another model is left to ask."""
    first_token: float = 6.0
    """To begin its answer, where no other model is left."""
    next_token: float = 2.0
    """From one piece of its answer to the next."""


_SENTENCE_ENDS = re.compile(r"[.!?…:;。！？]['\")\]]*\s|\n")


class _SentenceGate:
    """Holds an answer's text back until a sentence ends.

    Where the model fails in the middle of a sentence, the caller has heard nothing of it, and another model can say it.
    """

    def __init__(self) -> None:
        self._text = ""
        self.passed = ""
        """The text that was passed on: the caller hears it, or is about to."""
        self.called = False
        """Whether a call of a function was passed on: what it does cannot be taken back."""

    def feed(self, delta: Delta) -> list[Delta]:
        """Return what may be passed on now. A call of a function goes on at once, with all text before it."""
        self._text += delta.text
        ends = [match.end() for match in _SENTENCE_ENDS.finditer(self._text)]
        # A call ends the text before it, whether or not that is a whole sentence.
        whole = len(self._text) if delta.tool_call else ends[-1] if ends else 0
        text, self._text = self._text[:whole], self._text[whole:]
        if not text and delta.tool_call is None and delta.usage is None:
            return []
        self.passed += text
        self.called = self.called or delta.tool_call is not None
        return [replace(delta, text=text)]

    def rest(self) -> list[Delta]:
        """Return the text that is held back, at the end of the answer."""
        text, self._text = self._text, ""
        self.passed += text
        return [Delta(text=text)] if text else []


class _RepetitionFilter:
    """Removes from a continued answer the sentences that the caller has heard: models repeat them all the same."""

    def __init__(self, passed: str) -> None:
        self._passed = {_normal(sentence) for sentence in _sentences(passed)}

    def new_parts(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return the deltas without what the caller has heard already."""
        return [left for delta in deltas if (left := self._new_part(delta)) is not None]

    def _new_part(self, delta: Delta) -> Delta | None:
        """Return what is new in a delta; None: nothing is."""
        while self._passed and delta.text.strip():
            first = _sentences(delta.text)[0]
            if _normal(first) not in self._passed:
                # The answer has come to something new: from here on a repetition is meant.
                self._passed.clear()
            else:
                delta = replace(delta, text=delta.text.lstrip()[len(first) :])
        return delta if delta.text or delta.tool_call or delta.usage else None


class FailoverModel:
    """Models in order of preference; the breakers that keep failing ones from being asked are shared by all calls."""

    def __init__(
        self, models: Sequence[tuple[str, LanguageModel]], timeouts: AnswerTimeouts = AnswerTimeouts()
    ) -> None:
        """`models`: names, as settings give them, and models. Those without a provider's name run on this machine."""
        self._timeouts = timeouts
        members = [Member(name, model, embedded=name.partition("/")[0] not in declarations()) for name, model in models]
        self.lineup = Lineup("model", members)
        self._counted = self.lineup
        """The line-up that counts outages; a call's view has the line-up of the server here."""

    def for_call(self) -> LanguageModel:
        """Return a view for one call: the same breakers over each model's own view of the call."""
        view = copy(self)
        members = [replace(member, provider=for_call(member.provider)) for member in self.lineup.members]
        view.lineup = Lineup("model", members)
        return view

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Answer as `LanguageModel` does. Where an answer stops, the next model gives the rest.

        After a call of a tool none does: what the tool did cannot be taken back, nor done twice.
        """
        failure: ProviderError | None = None
        passed = ""
        for place, member in enumerate(self.lineup.members):
            if not self.lineup.may_ask(member, _now()):
                continue
            # A model's name belongs to the first provider; the others have their own.
            own = replace(settings, model="") if place else settings
            asked = _continued(messages, passed) if passed and not member.embedded else messages
            answering = member.provider.stream(asked, tools, own)
            gate, repetitions = _SentenceGate(), _RepetitionFilter(passed)
            try:
                async for delta in self._deltas(answering, member, gate, repetitions):
                    yield delta
                member.breaker.succeed()
                return
            except (ProviderError, TimeoutError) as error:
                if settings.safety and isinstance(error, AnswerWithheld):
                    # Another model may have no such filter, and would say what is not to be said.
                    member.breaker.succeed()
                    raise
                failure = _as_provider_error(error, member)
                self._note_failure(member, failure)
                if gate.called:
                    raise failure from None
                passed += gate.passed
            finally:
                await answering.aclose()
        self._counted.outages += 1
        log.error("provider_outage", role="model")
        raise failure or ProviderError("no model may be asked: all have failed lately")

    async def _deltas(
        self,
        answering: AsyncIterator[Delta],
        member: Member[LanguageModel],
        gate: _SentenceGate,
        repetitions: _RepetitionFilter,
    ) -> AsyncGenerator[Delta, None]:
        """Yield what may be passed on of one model's answer. Raises `ProviderError` and `TimeoutError`."""
        begun = False
        while (delta := await self._next(answering, member, begun=begun)) is not None:
            begun = True
            for part in repetitions.new_parts(gate.feed(delta)):
                yield part
        for part in repetitions.new_parts(gate.rest()):
            yield part

    async def _next(
        self, answering: AsyncIterator[Delta], member: Member[LanguageModel], *, begun: bool
    ) -> Delta | None:
        """Return the next step of an answer; None at its end. Raises `TimeoutError`."""
        is_last = member is self.lineup.members[-1]
        seconds = self._timeouts.first_token if is_last else self._timeouts.fallback_after
        if begun:
            seconds = self._timeouts.next_token
        async with asyncio.timeout(None if self.lineup.is_patient(member) else seconds):
            return await anext(answering, None)

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


def _continued(messages: Sequence[Message], passed: str) -> Sequence[Message]:
    """Return the conversation for a model that is to go on with an answer of which the caller has heard `passed`."""
    note = (
        f"You have begun your answer already; the caller has heard this part of it: {json.dumps(passed.strip())}\n"
        "Give only the rest of the answer. Repeat nothing of that part."
    )
    first = messages[0] if messages else None
    if first is not None and first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{note}"}, *messages[1:]]
    return [{"role": "system", "content": note}, *messages]


def _sentences(text: str) -> list[str]:
    """Return the text's sentences without the white space before them."""
    ends = [match.end() for match in _SENTENCE_ENDS.finditer(text)]
    bounds = [0, *ends, len(text)]
    return [text[start:end].lstrip() for start, end in pairwise(bounds) if text[start:end].strip()]


def _normal(sentence: str) -> str:
    # Two models write the same sentence with other marks and capitals.
    return "".join(letter for letter in sentence.casefold() if letter.isalnum())


def _now() -> float:
    return asyncio.get_running_loop().time()
