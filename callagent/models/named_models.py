"""Models by the names that projects know: a hosted platform's identifiers lead to models of this server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from callagent.failover import Lineup
from callagent.log import get_logger
from callagent.models.failover import FailoverModel
from callagent.models.protocol import Delta, LanguageModel, Message, ModelSettings, Tool, for_call

log = get_logger(__name__)

ANY = "*"
"""In a table of names: every name that is not listed."""
_NAMELESS = ("", "None")
_MAX_WARNINGS = 100


class ModelNames(Mapping[str, str]):
    """A project's name of a model -> ours. Names that are not listed are those of `*`, and told once."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._told: set[str] = set()

    def __getitem__(self, name: str) -> str:
        """Raises `KeyError` for what is no name, and for one that is not listed where there is no `*`."""
        if name in _NAMELESS:
            raise KeyError(name)
        if name not in self._names:
            self._tell(name)
        return self._names[name if name in self._names else ANY]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _tell(self, name: str) -> None:
        if name not in self._told and len(self._told) < _MAX_WARNINGS:
            self._told.add(name)
            log.warning("model_name_not_listed", name=name, used=self._names.get(ANY, "the configured model"))


class NamedModels:
    """The configured model, and others that a request may name."""

    def __init__(self, configured: LanguageModel, others: Mapping[str, LanguageModel]) -> None:
        self.configured = configured
        self.others = others

    def for_call(self) -> LanguageModel:
        return NamedModels(for_call(self.configured), {name: for_call(model) for name, model in self.others.items()})

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        """As `LanguageModel`; `settings.model` is one of the others, or the configured model's own name for one."""
        model = self.others.get(settings.model)
        asked = self.configured if model is None else model
        own = settings if model is None else replace(settings, model="")
        async with aclosing(cast("Any", asked.stream(messages, tools, own))) as deltas:
            async for delta in deltas:
                yield delta

    async def close(self) -> None:
        for model in (self.configured, *self.others.values()):
            await model.close()


def lineup_of(model: LanguageModel) -> Lineup[LanguageModel] | None:
    """The line-up behind the configured model; None: it is alone."""
    if isinstance(model, NamedModels):
        model = model.configured
    return model.lineup if isinstance(model, FailoverModel) else None
