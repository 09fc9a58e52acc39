"""Language models in order of preference: one that does not begin to answer in time is followed by the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import replace

from callagent.breaker import Lineup, Member, is_alarm
from callagent.errors import ProviderError, ProviderTimeout
from callagent.log import get_logger
from callagent.models.protocol import Delta, LanguageModel, Message, ModelSettings, Tool, for_call

log = get_logger(__name__)

REMOTE = ("anthropic", "gemini", "openai")
"""Providers of models behind a network."""
FIRST_DELTA_SECONDS = 2.5
"""From the request to the first of the answer."""


class FailoverModel:
    """The members' breakers are shared by all calls."""

    def __init__(self, models: Sequence[tuple[str, LanguageModel]]) -> None:
        """Names, as settings give them, and models. Those without a provider in front are of this machine."""
        members = [Member(name, model, embedded=name.partition("/")[0] not in REMOTE) for name, model in models]
        self.lineup = Lineup("model", members)

    def for_call(self) -> LanguageModel:
        """The same breakers over each model's view of one call."""
        view = copy(self)
        members = [replace(member, provider=for_call(member.provider)) for member in self.lineup.members]
        view.lineup = Lineup("model", members)
        return view

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        """As `LanguageModel`. An answer that was begun is not begun again: its failure is raised."""
        failure: ProviderError | None = None
        for place, member in enumerate(self.lineup.members):
            if not self.lineup.may_ask(member, _now()):
                continue
            # A model's name belongs to the first provider; the others have their own.
            own = replace(settings, model="") if place else settings
            answering = member.provider.stream(messages, tools, own)
            begun = False
            try:
                async with asyncio.timeout(None if self.lineup.is_patient(member) else FIRST_DELTA_SECONDS):
                    delta = await anext(answering, None)
                while delta is not None:
                    begun = True
                    yield delta
                    delta = await anext(answering, None)
                member.breaker.succeed()
                return
            except (ProviderError, TimeoutError) as error:
                failure = _as_provider_error(error, member)
                self._note_failure(member, failure)
                if begun:
                    raise failure from None
            finally:
                await answering.aclose()  # type: ignore[attr-defined]
        self.lineup.outages += 1
        log.error("provider_outage", role="model")
        raise failure or ProviderError("no model may be asked: all have failed lately")

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()

    def _note_failure(self, member: Member[LanguageModel], error: ProviderError) -> None:
        member.breaker.fail(error, _now())
        level = log.error if is_alarm(error) else log.warning
        level("provider_failed", role="model", provider=member.name, error=str(error))


def _as_provider_error(error: ProviderError | TimeoutError, member: Member[LanguageModel]) -> ProviderError:
    if isinstance(error, ProviderError):
        return error
    return ProviderTimeout(f"the model '{member.name}' did not begin to answer within {FIRST_DELTA_SECONDS:g} s")


def _now() -> float:
    return asyncio.get_running_loop().time()
