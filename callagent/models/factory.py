"""From the name of a model, as settings and commands give it, to the model."""

from __future__ import annotations

from collections.abc import Callable

from callagent.errors import UserError
from callagent.models.protocol import LanguageModel
from callagent.models.settings import ProviderSettings


def _open_rules(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.rules import RulesModel

    return RulesModel()


def _open_embedded(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.embedded import EmbeddedModel, NeedlePool, find_weights

    return EmbeddedModel(NeedlePool(find_weights()))


def _open_script(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.scripted import ScriptedModel

    return ScriptedModel.from_file(rest)


def _open_openai(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.openai import OpenAIModel

    return OpenAIModel(rest, settings)


def _open_functiongemma(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.functiongemma import EngineSettings, open_functiongemma

    engine = EngineSettings(
        base_url=settings.base_url,
        # Unless a server is named, the engine is on this machine and knows no key.
        api_key=settings.api_key if settings.base_url else "",
        temperature=settings.temperature,
        first_token_timeout=settings.first_token_timeout,
        next_token_timeout=settings.next_token_timeout,
        total_timeout=settings.total_timeout,
    )
    return open_functiongemma(rest, engine, settings.fallback)


def _open_anthropic(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.anthropic import AnthropicModel

    return AnthropicModel(rest, settings)


def _open_gemini(rest: str, settings: ProviderSettings) -> LanguageModel:
    from callagent.models.gemini import GeminiModel

    return GeminiModel(rest, settings)


PROVIDERS = (
    "rules",
    "embedded",
    "script:FILE",
    "openai/MODEL",
    "anthropic/MODEL",
    "gemini/MODEL",
    "functiongemma/ENGINE",
)
"""The forms that `open_model` takes, for help texts."""

# Kind -> (the separator that a name follows, "" for none; what opens it).
_KINDS: dict[str, tuple[str, Callable[[str, ProviderSettings], LanguageModel]]] = {
    "rules": ("", _open_rules),
    "embedded": ("", _open_embedded),
    "script": (":", _open_script),
    "openai": ("/", _open_openai),
    "anthropic": ("/", _open_anthropic),
    "gemini": ("/", _open_gemini),
    "functiongemma": ("/", _open_functiongemma),
}


def open_model(name: str, settings: ProviderSettings | None = None) -> LanguageModel:
    """The model called `name`, in one of the forms of `PROVIDERS`.

    Raises `UserError` for a name that is none of these and for a script that cannot be read.
    """
    for kind, (separator, opener) in _KINDS.items():
        rest = name.removeprefix(kind + separator)
        if name.startswith(kind + separator) and bool(rest) == bool(separator):
            return opener(rest, settings or ProviderSettings())
    raise UserError(f"unknown model '{name}'; {_suggestion(name)}")


def _suggestion(name: str) -> str:
    import difflib

    kind = name.replace(":", "/").partition("/")[0].lower()
    close = difflib.get_close_matches(kind, _KINDS, n=1)
    forms = {form.partition(":")[0].partition("/")[0]: form for form in PROVIDERS}
    return f"did you mean '{forms[close[0]]}'?" if close else f"known: {', '.join(PROVIDERS)}"
