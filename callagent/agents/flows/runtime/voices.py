"""The voices that project code may ask for by class; what counts is provider, voice and settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class TTSVoice:
    def __init__(self, provider: str, provider_voice_id: str, config: dict[str, Any] | None = None) -> None:
        self.provider = provider
        self.provider_voice_id = provider_voice_id
        self.config = {name: value for name, value in (config or {}).items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        return {"provider": self.provider, "provider_voice_id": self.provider_voice_id, "config": dict(self.config)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TTSVoice) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.provider, self.provider_voice_id))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.provider!r}, {self.provider_voice_id!r})"


VoiceType = TTSVoice


class CustomVoice(TTSVoice):
    def __init__(self, provider: str, provider_voice_id: str, **config: Any) -> None:
        super().__init__(provider, provider_voice_id, config)


class EmotionKind(Enum):
    ANGER = "anger"
    POSITIVITY = "positivity"
    SURPRISE = "surprise"


class EmotionIntensity(Enum):
    LOWEST = "lowest"
    LOW = "low"
    HIGH = "high"
    HIGHEST = "highest"


EmotionKindValue = str
EmotionIntensityValue = str
GoogleGeminiTtsModel = str


@dataclass(frozen=True)
class Emotion:
    kind: EmotionKind | str
    intensity: EmotionIntensity | str | None = None


class ElevenLabsVoice(TTSVoice):
    def __init__(
        self,
        provider_voice_id: str,
        similarity_boost: float | None = None,
        stability: float | None = None,
        model_id: str = "eleven_turbo_v2_5",
        speed: float | None = None,
    ) -> None:
        config = {"similarity_boost": similarity_boost, "stability": stability, "model_id": model_id, "speed": speed}
        super().__init__("elevenlabs", provider_voice_id, config)


class RimeVoice(TTSVoice):
    def __init__(self, provider_voice_id: str, speech_alpha: float = 1.0, model_id: str = "mistv2") -> None:
        super().__init__("rime", provider_voice_id, {"speech_alpha": speech_alpha, "model_id": model_id})


class _NamedSettings(TTSVoice):
    """A voice whose class gives the provider, the order of positional settings and their defaults."""

    PROVIDER = ""
    SETTINGS: tuple[tuple[str, Any], ...] = ()

    def __init__(self, provider_voice_id: str, *values: Any, **named: Any) -> None:
        names = [name for name, _ in self.SETTINGS]
        unknown = set(named) - set(names)
        if unknown or len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no settings'}")
        config = {**dict(self.SETTINGS), **dict(zip(names, values, strict=False)), **named}
        super().__init__(self.PROVIDER, provider_voice_id, config)


class CartesiaVoice(_NamedSettings):
    PROVIDER = "cartesia"
    SETTINGS = (
        ("speed", 0), ("emotions", None), ("model_id", "sonic-3.6"), ("volume", None), ("emotion", None),
        ("language", None),
    )  # fmt: skip


class PlayHTVoice(_NamedSettings):
    PROVIDER = "playht"
    SETTINGS = tuple(
        (name, None) for name in ("speed", "temperature", "emotion", "voice_guidance", "style_guidance", "voice_engine")
    )


class HumeVoice(_NamedSettings):
    PROVIDER = "hume"
    SETTINGS = (("voice_description", None), ("version", "2"), ("instant_mode", False), ("provider", "CUSTOM_VOICE"))


class GoogleVoice(_NamedSettings):
    PROVIDER = "google"
    SETTINGS = (("gender", None),)


class XaiVoice(_NamedSettings):
    PROVIDER = "xai"
    SETTINGS = (("language", None),)


class GradiumVoice(_NamedSettings):
    PROVIDER = "gradium"
    SETTINGS = (("model_name", None),)


class HamsaVoice(_NamedSettings):
    PROVIDER = "hamsa"
    SETTINGS = (("dialect", None), ("expressiveness", None))


class GoogleGeminiVoice(_NamedSettings):
    PROVIDER = "google_gemini"
    SETTINGS = (("model", "gemini-3.8-flash-tts"), ("prompt", None))


class MinimaxVoice(TTSVoice):
    def __init__(self, model_id: str, voice_id: str, *values: Any, **named: Any) -> None:
        config = {**dict(zip(("speed", "vol", "pitch", "emotion"), values, strict=False)), **named}
        super().__init__("minimax", voice_id, {"model_id": model_id, **config})


@dataclass(frozen=True)
class VoiceWeighting:
    voice: TTSVoice
    weight: float | None = None


def weights(choices: list[VoiceWeighting]) -> list[float]:
    """Every choice's share; the unweighted ones share what the others leave of 1."""
    given = sum(choice.weight or 0.0 for choice in choices)
    open_choices = sum(choice.weight is None for choice in choices)
    if not choices or given > 1.001 or (not open_choices and given < 0.999):
        raise ValueError("voice weights must sum to 1.0")
    rest = max(1.0 - given, 0.0) / open_choices if open_choices else 0.0
    return [rest if choice.weight is None else choice.weight for choice in choices]
