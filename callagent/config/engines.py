"""The settings of speech and of language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, create_model

from callagent.config.values import NamesSetting, Section, ServerUrlSetting, UrlSetting
from callagent.models import declarations as model_providers
from callagent.speech.providers import declarations as speech_providers


class SpeechProviderSettings(Section):
    """How one speech provider is reached."""

    api_key: SecretStr = SecretStr("")
    base_url: ServerUrlSetting = ""
    """Empty: the provider's own. Of a Wyoming server `tcp://HOST:PORT`."""
    model: str = ""
    voice: str = ""
    """The provider's own name of the voice; empty: a default of ours."""


if TYPE_CHECKING:

    class SpeechProviders(Section):
        """A table of settings for each speech provider."""

        def __getattr__(self, name: str) -> SpeechProviderSettings: ...

else:
    # The providers' own files declare which there are: settings need no list of them.
    SpeechProviders = create_model(
        "SpeechProviders",
        __base__=Section,
        **{one.section: (SpeechProviderSettings, SpeechProviderSettings()) for one in speech_providers().values()},
    )


class VoiceLike(Section):
    """Which voices stand for one that a project asks for."""

    provider: str
    name: str
    """The voice as the project names it."""
    instead: Mapping[str, str]
    """Provider -> its name of a like voice."""


class SpeechSettings(Section):
    recognizer: NamesSetting = ("local",)
    """`local`, a provider such as `deepgram` or `deepgram/nova-3`, `script:FILE`, `none`; of several, the next takes
    over where one fails."""
    voice: NamesSetting = ("local",)
    providers: SpeechProviders = SpeechProviders()
    voices: tuple[VoiceLike, ...] = ()
    voice_cache: str = ""
    """Folder for what was spoken, to be said again without asking a voice; empty: it is kept in memory only."""
    language: str = "en-US"
    sounds: str = ""
    """Folder of WAV files that agents may name as background track, thinking sound or effect."""
    whisper_dir: str = ""
    """A CTranslate2 Whisper model directory to use for finals instead of the packaged one."""
    endpointing: float = Field(default=0.5, ge=0.1, le=5)
    """Seconds of silence that end the caller's turn."""
    turn_model: str = "none"
    """`smart-turn`: hears by the intonation whether the caller has finished; shortens or lengthens that silence."""
    no_input: float = Field(default=7.0, ge=1, le=60)
    """Seconds of silence until the agent asks again."""


class ModelFallback(Section):
    """A model that is asked where those before it fail."""

    name: str
    base_url: UrlSetting = ""
    """Empty: the provider's."""
    api_key: SecretStr = SecretStr("")


class ModelProviderSettings(Section):
    """How one provider of models is reached."""

    base_url: UrlSetting = ""
    """Empty: the provider's own."""
    api_key: SecretStr = SecretStr("")


if TYPE_CHECKING:

    class ModelProviders(Section):
        """A table of settings for each provider of models."""

        def __getattr__(self, name: str) -> ModelProviderSettings: ...

else:
    ModelProviders = create_model(
        "ModelProviders",
        __base__=Section,
        **{name: (ModelProviderSettings, ModelProviderSettings()) for name in model_providers()},
    )


class FunctionGemmaSettings(Section):
    fallback: str = "rules"
    """The model that answers where FunctionGemma calls no function: `rules` says what the step's prompt says
    (`Otherwise say: …`), a larger model what it thinks. Empty: FunctionGemma's own words are spoken."""


class ModelSection(Section):
    name: str = "rules"
    """`rules`, `embedded`, `PROVIDER/MODEL` (such as `openai/gpt-4.1-mini`), `functiongemma/ENGINE`, `script:FILE`."""
    base_url: UrlSetting = ""
    """Of the server of `name`, with `api_key`; empty: as `providers` say."""
    api_key: SecretStr = SecretStr("")
    providers: ModelProviders = ModelProviders()
    names: Mapping[str, str] = Field(default_factory=dict)
    """A model as projects name it -> as `name` does; `*`: names that are not listed."""
    reasoning_effort: Literal["", "none", "minimal", "low", "medium", "high"] = ""
    temperature: float | None = None
    filler_after: float = Field(default=1.2, ge=0)
    """Seconds of silence after the caller's turn, or within the answer, until a word of patience is said, unless a
    filler of the project speaks; again after each 2 s of further silence. 0: never."""
    fallback_after: float = Field(default=2.5, gt=0)
    """Seconds without a first token after which the next of `fallbacks` is asked."""
    first_token_timeout: float = Field(default=6.0, gt=0)
    """Seconds, where no other model is left to ask."""
    next_token_timeout: float = Field(default=2.0, gt=0)
    """Seconds from one token to the next."""
    total_timeout: float = Field(default=30.0, gt=0)
    fallbacks: tuple[ModelFallback, ...] = ()
    functiongemma: FunctionGemmaSettings = FunctionGemmaSettings()
