"""Opening of language models by the names that settings, commands and projects give them.

Projects use the model names of a hosted platform; a table of the settings maps these to models of this server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from callagent.errors import UserError
from callagent.failover import Lineup
from callagent.log import get_logger
from callagent.models.failover import FailoverModel
from callagent.models.protocol import Delta, LanguageModel, Message, ModelSettings, ProviderSettings, Tool, for_call
from callagent.models.providers import declarations

log = get_logger(__name__)


def _open_rules(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.rules import RulesModel

    return RulesModel()


def _open_embedded(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.embedded import EmbeddedModel, NeedlePool, find_needle_files

    return EmbeddedModel(NeedlePool(find_needle_files()))


def _open_script(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.scripted import ScriptedModel

    return ScriptedModel.from_file(rest)


def _open_functiongemma(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.functiongemma import EngineSettings, open_functiongemma

    engine = EngineSettings(
        base_url=settings.base_url,
        # Unless a server is named, the engine is on this machine and needs no key.
        api_key=settings.api_key if settings.base_url else "",
        temperature=settings.temperature,
        first_token_timeout=settings.first_token_timeout,
        next_token_timeout=settings.next_token_timeout,
        total_timeout=settings.total_timeout,
    )
    return open_functiongemma(rest, engine, settings.fallback)


# Kind -> the form of its names, and the function that opens it. These run here; providers declare themselves.
_LOCAL: dict[str, tuple[str, Callable[[str, ProviderSettings], LanguageModel]]] = {
    "rules": ("rules", _open_rules),
    "embedded": ("embedded", _open_embedded),
    "script": ("script:FILE", _open_script),
    "functiongemma": ("functiongemma/ENGINE", _open_functiongemma),
}


def open_model(name: str, settings: ProviderSettings | None = None) -> LanguageModel:
    """Open the model called `name`, one of this machine or `PROVIDER/MODEL`.

    Raises `UserError` for a name of no known form and for a script that cannot be read.
    """
    for kind, (form, opener) in _openers().items():
        # Nothing may follow `rules`; something must follow `script:` and `openai/`.
        separator = form.removeprefix(kind)[:1]
        rest = name.removeprefix(kind + separator)
        if name.startswith(kind + separator) and bool(rest) == bool(separator):
            return opener(rest, settings or ProviderSettings())
    raise UserError(f"unknown model '{name}'; {_suggestion(name)}")


def _openers() -> dict[str, tuple[str, Callable[[str, ProviderSettings], LanguageModel]]]:
    return _LOCAL | {one.name: (one.form, one.open) for one in declarations().values()}


def _suggestion(name: str) -> str:
    import difflib

    forms = {kind: form for kind, (form, _) in _openers().items()}
    kind = name.replace(":", "/").partition("/")[0].lower()
    close = difflib.get_close_matches(kind, forms, n=1)
    return f"did you mean '{forms[close[0]]}'?" if close else f"known: {', '.join(forms.values())}"


ANY = "*"
"""In a table of names: every name that is not listed."""
_NAMELESS = ("", "None")
"""What projects write where they name no model."""
_MAX_WARNINGS = 100
"""Names that are logged; projects can generate names, and the log must not grow with them."""


class ModelNames(Mapping[str, str]):
    """The mapping of a project's model names to ours. An unlisted name maps as `*` does, and is logged once."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._warned: set[str] = set()

    def __getitem__(self, name: str) -> str:
        """Return our name. Raises `KeyError` for an empty name, and for an unlisted one where there is no `*`."""
        if name in _NAMELESS:
            raise KeyError(name)
        if name not in self._names:
            self._warn(name)
        return self._names[name if name in self._names else ANY]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _warn(self, name: str) -> None:
        if name not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(name)
            log.warning("model_name_not_listed", name=name, used=self._names.get(ANY, "the configured model"))


class NamedModels:
    """The configured model and others, among which a request chooses by name."""

    def __init__(self, configured: LanguageModel, others: Mapping[str, LanguageModel]) -> None:
        self.configured = configured
        self.others = others

    def for_call(self) -> LanguageModel:
        return NamedModels(for_call(self.configured), {name: for_call(model) for name, model in self.others.items()})

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Answer as `LanguageModel` does.

        If `settings.model` names one of the others, that one answers; any other name is left to the configured model.
        """
        model = self.others.get(settings.model)
        chosen = self.configured if model is None else model
        chosen_settings = settings if model is None else replace(settings, model="")
        async with aclosing(chosen.stream(messages, tools, chosen_settings)) as deltas:
            async for delta in deltas:
                yield delta

    async def close(self) -> None:
        for model in (self.configured, *self.others.values()):
            await model.close()


def lineup_of(model: LanguageModel) -> Lineup[LanguageModel] | None:
    """Return the line-up behind the configured model; None: it has no fallbacks."""
    if isinstance(model, NamedModels):
        model = model.configured
    return model.lineup if isinstance(model, FailoverModel) else None
