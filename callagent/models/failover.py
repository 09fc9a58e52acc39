"""Language models in order of preference: one that does not begin to answer in time is followed by the next."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import replace

from callagent.breaker import Lineup, Member, is_alarm
from callagent.errors import AnswerWithheld, ProviderError, ProviderTimeout
from callagent.log import get_logger
from callagent.models.protocol import Delta, LanguageModel, Message, ModelSettings, Tool, for_call

log = get_logger(__name__)

REMOTE = ("anthropic", "gemini", "openai")
"""Providers of models behind a network."""
FIRST_DELTA_SECONDS = 2.5
"""From the request to the first of the answer."""
NEXT_DELTA_SECONDS = 2.5
"""From one piece of an answer to the next."""


_SENTENCE_ENDS = re.compile(r"[.!?…:;。！？]['\")\]]*\s|\n")


class _Held:
    """Text of an answer up to the end of a sentence: what nobody has heard yet may come from another model."""

    def __init__(self) -> None:
        self._text = ""
        self.released = False
        """Something of the answer was passed on."""

    def feed(self, delta: Delta) -> list[Delta]:
        """What may be passed on now. A call of a function goes on at once, with all before it."""
        self._text += delta.text
        ends = [match.end() for match in _SENTENCE_ENDS.finditer(self._text)]
        whole = len(self._text) if delta.tool_call else ends[-1] if ends else 0
        text, self._text = self._text[:whole], self._text[whole:]
        if not text and delta.tool_call is None and delta.usage is None:
            return []
        self.released = self.released or bool(text) or delta.tool_call is not None
        return [replace(delta, text=text)]

    def rest(self) -> list[Delta]:
        text, self._text = self._text, ""
        return [Delta(text=text)] if text else []


class FailoverModel:
    """The members' breakers are shared by all calls."""

    def __init__(self, models: Sequence[tuple[str, LanguageModel]]) -> None:
        """Names, as settings give them, and models. Those without a provider in front are of this machine."""
        members = [Member(name, model, embedded=name.partition("/")[0] not in REMOTE) for name, model in models]
        self.lineup = Lineup("model", members)
        self._counted = self.lineup
        """Where outages are counted, whichever call has them."""

    def for_call(self) -> LanguageModel:
        """The same breakers over each model's view of one call."""
        view = copy(self)
        members = [replace(member, provider=for_call(member.provider)) for member in self.lineup.members]
        view.lineup = Lineup("model", members)
        return view

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        """As `LanguageModel`. An answer of which a sentence was passed on is not begun again: its failure is raised."""
        failure: ProviderError | None = None
        for place, member in enumerate(self.lineup.members):
            if not self.lineup.may_ask(member, _now()):
                continue
            # A model's name belongs to the first provider; the others have their own.
            own = replace(settings, model="") if place else settings
            answering = member.provider.stream(messages, tools, own)
            begun, held = False, _Held()
            try:
                while (delta := await self._next(answering, member, begun=begun)) is not None:
                    begun = True
                    for one in held.feed(delta):
                        yield one
                for one in held.rest():
                    yield one
                member.breaker.succeed()
                return
            except (ProviderError, TimeoutError) as error:
                if settings.safety and isinstance(error, AnswerWithheld):
                    # Another model may have no such filter: what is not to be said is said by none.
                    member.breaker.succeed()
                    raise
                failure = _as_provider_error(error, member)
                self._note_failure(member, failure)
                if held.released:
                    raise failure from None
            finally:
                await answering.aclose()  # type: ignore[attr-defined]
        self._counted.outages += 1
        log.error("provider_outage", role="model")
        raise failure or ProviderError("no model may be asked: all have failed lately")

    async def _next(
        self, answering: AsyncIterator[Delta], member: Member[LanguageModel], *, begun: bool
    ) -> Delta | None:
        """Raises `TimeoutError`."""
        seconds = NEXT_DELTA_SECONDS if begun else FIRST_DELTA_SECONDS
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
    return ProviderTimeout(f"the model '{member.name}' did not answer within {FIRST_DELTA_SECONDS:g} s")


def _now() -> float:
    return asyncio.get_running_loop().time()
