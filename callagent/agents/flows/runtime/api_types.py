"""The types of the project API, under the names that project code uses: values, exceptions and voices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, TypedDict


@dataclass
class MetricEvent:
    name: str
    value: object = None


@dataclass
class SMSTemplate:
    name: str = ""
    content: str = ""
    phone_number: str | None = None


@dataclass
class OutgoingSMS:
    to_number: str
    from_number: str
    content: str
    content_id: str | None = None


@dataclass
class OutgoingSMSTemplate:
    to_number: str
    template: str


@dataclass
class SMSCredentials:
    account_sid: str
    auth_token: str


@dataclass
class SMSClientFailure:
    integration: str
    reason: str


@dataclass
class SMSReceived:
    from_number: str
    to_number: str
    text: str


class ExternalEvents:
    """Text messages received during a call; none are received on this server."""

    def listen_for_sms_next_turn(self, timeout: int = 20) -> None:
        raise NotAvailable("receiving SMS during a call is not available on this server")

    def get_sms_received_history(self) -> list[SMSReceived]:
        return []


@dataclass
class HandoffConfig:
    name: str = ""
    description: str = ""
    is_default: bool = False
    method: str = "bye"
    phone_number: str | None = None
    sip_headers: dict[str, str] = field(default_factory=dict)


Handoff = HandoffConfig


@dataclass
class ASRBiasing:
    keywords: list[str] = field(default_factory=list)
    custom_biases: dict[str, float] = field(default_factory=dict)


@dataclass
class Attachment:
    content_url: str | None = None
    content_type: str = "unspecified"
    title: str | None = None
    preview_image_url: str | None = None
    call_to_action: object = None
    chart_spec: object = None


@dataclass
class ChatCallAction:
    contact_number: str
    title: str | None = None


class WebchatInterface:
    def __init__(self) -> None:
        self.chat_call_actions: list[ChatCallAction] = []

    def set_chat_call_actions(self, actions: list[ChatCallAction]) -> None:
        self.chat_call_actions = list(actions)


@dataclass
class Address:
    street_number: str | None = None
    street_name: str | None = None
    city: str | None = None
    state: str | None = None
    postcode: str | None = None
    country: str | None = None


@dataclass
class Destination:
    name: str
    phone_number: str
    sip_headers: dict[str, str] | None = None


@dataclass
class MessageToParent:
    content: str


@dataclass
class MessageToChild:
    destination: str
    content: str


class StepAttempt(TypedDict, total=False):
    node_id: str
    node_label: str
    action_type: str
    channel: str
    attempt_number: int
    status: str
    result: object
    step_data: object
    attempted_at: str
    completed_at: str


class ContactJourney(TypedDict, total=False):
    enrolled_at: str
    current_node_id: str
    current_attempt: int
    status: str
    attempts: list[StepAttempt]


ContactMetadata = dict[str, Any]


class OutboundContact(TypedDict, total=False):
    contact_id: str
    enrolment_id: str
    phone: str
    first_name: str
    last_name: str
    external_id: str
    timezone: str
    variant_id: str
    consent_verified: bool
    consent_timestamp: str
    metadata: ContactMetadata
    journey: ContactJourney


class OutboundCampaign(TypedDict, total=False):
    campaign_id: str
    name: str
    node_id: str


@dataclass
class FlowTransition:
    goto_flow: str | None = None
    exit_flow: bool = False


@dataclass
class StepTransition:
    goto_step: str | None = None


@dataclass
class Transition:
    exit_flow: bool = False
    goto_flow: str | None = None
    goto_step: str | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Transition:
        return cls(bool(values.get("exit_flow")), values.get("goto_flow"), values.get("goto_step"))

    @property
    def is_noop(self) -> bool:
        return not (self.exit_flow or self.goto_flow or self.goto_step)


@dataclass(frozen=True)
class UserInput:
    """The caller's words in one turn; an empty text is a silent turn."""

    text: str
    role: ClassVar[str] = "user"

    def to_dict(self) -> dict[str, str]:
        return {"type": self.role, "text": self.text}

    def to_string(self) -> str:
        return f"User: {self.text}"


@dataclass(frozen=True)
class AgentResponse:
    text: str
    role: ClassVar[str] = "agent"

    def to_dict(self) -> dict[str, str]:
        return {"type": self.role, "text": self.text}

    def to_string(self) -> str:
        return f"Agent: {self.text}"


def history_of(entries: Iterable[Mapping[str, object]]) -> list[UserInput | AgentResponse]:
    """Build `conv.history` from entries `{"role", "text"}`: every role but `user` is the agent."""
    return [
        UserInput(str(entry.get("text") or "")) if entry.get("role") == "user" else AgentResponse(str(entry["text"]))
        for entry in entries
    ]


class NotAvailable(NotImplementedError):
    """A part of the project API that this server does not offer; the text names it."""


class MissingHandoff(Exception):
    """`call_handoff` names a destination that the project does not have."""


class MissingTemplate(Exception):
    """`send_sms_template` names a template that the project does not have."""


class SMSIntegrationNotFound(Exception):
    """No SMS sender is configured."""


class SMSMissingAssistantAccess(Exception):
    """The SMS sender is not for this project."""


class ChatCompletionError(Exception):
    """`prompt_llm` got no usable answer."""


class PromptLLMCallLimitError(Exception):
    """One function run asked the model too often."""


class SecretNotFound(Exception):
    """No secret of that name is declared."""


class MissingAccess(Exception):
    """The secret is not for this project."""


class InvalidInput(Exception):
    """The secret's name is not valid."""


class ExtractionError(Exception):
    """The value was not found in the caller's words."""


class CxOneError(Exception):
    """Base of the CXone errors."""


class CxOneMissingContactId(CxOneError): ...


class CxOneSecretError(CxOneError): ...


class CxOneTokenError(CxOneError): ...


class CxOneSignalError(CxOneError): ...


class Unavailable:
    """A stand-in for an object of the API that this server does not offer: every use raises `NotAvailable`."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> object:
        # Python itself looks these up, as copy and pprint do: they must not raise NotAvailable.
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        raise NotAvailable(f"{self.__dict__['_name']}.{attribute} is not available on this server")

    def __getitem__(self, key: object) -> object:
        raise NotAvailable(f"{self.__dict__['_name']}[{key!r}] is not available on this server")


class TTSVoice:
    def __init__(self, provider: str, provider_voice_id: str, config: Mapping[str, object] | None = None) -> None:
        self.provider = provider
        self.provider_voice_id = provider_voice_id
        self.config = {name: value for name, value in (config or {}).items() if value is not None}

    def to_dict(self) -> dict[str, object]:
        return {"provider": self.provider, "provider_voice_id": self.provider_voice_id, "config": dict(self.config)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TTSVoice) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.provider, self.provider_voice_id))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.provider!r}, {self.provider_voice_id!r})"


VoiceType = TTSVoice


class CustomVoice(TTSVoice):
    def __init__(self, provider: str, provider_voice_id: str, **config: object) -> None:
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


class _ProviderVoice(TTSVoice):
    """Base of the voices of one provider; `SETTINGS` has names and defaults of its settings, in positional order."""

    PROVIDER = ""
    SETTINGS: tuple[tuple[str, object], ...] = ()

    def __init__(self, provider_voice_id: str, *values: object, **named: object) -> None:
        names = [name for name, _ in self.SETTINGS]
        unknown = set(named) - set(names)
        if unknown or len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no settings'}")
        config = {**dict(self.SETTINGS), **dict(zip(names, values, strict=False)), **named}
        super().__init__(self.PROVIDER, provider_voice_id, config)


class CartesiaVoice(_ProviderVoice):
    PROVIDER = "cartesia"
    SETTINGS = (
        ("speed", 0), ("emotions", None), ("model_id", "sonic-3.6"), ("volume", None), ("emotion", None),
        ("language", None),
    )  # fmt: skip


class PlayHTVoice(_ProviderVoice):
    PROVIDER = "playht"
    SETTINGS = tuple(
        (name, None) for name in ("speed", "temperature", "emotion", "voice_guidance", "style_guidance", "voice_engine")
    )


class HumeVoice(_ProviderVoice):
    PROVIDER = "hume"
    SETTINGS = (("voice_description", None), ("version", "2"), ("instant_mode", False), ("provider", "CUSTOM_VOICE"))


class GoogleVoice(_ProviderVoice):
    PROVIDER = "google"
    SETTINGS = (("gender", None),)


class XaiVoice(_ProviderVoice):
    PROVIDER = "xai"
    SETTINGS = (("language", None),)


class GradiumVoice(_ProviderVoice):
    PROVIDER = "gradium"
    SETTINGS = (("model_name", None),)


class HamsaVoice(_ProviderVoice):
    PROVIDER = "hamsa"
    SETTINGS = (("dialect", None), ("expressiveness", None))


class GoogleGeminiVoice(_ProviderVoice):
    PROVIDER = "google_gemini"
    SETTINGS = (("model", "gemini-3.8-flash-tts"), ("prompt", None))


class MinimaxVoice(TTSVoice):
    def __init__(self, model_id: str, voice_id: str, *values: object, **named: object) -> None:
        config = {**dict(zip(("speed", "vol", "pitch", "emotion"), values, strict=False)), **named}
        super().__init__("minimax", voice_id, {"model_id": model_id, **config})


@dataclass(frozen=True)
class VoiceWeighting:
    voice: TTSVoice
    weight: float | None = None


def voice_probabilities(choices: list[VoiceWeighting]) -> list[float]:
    """Return the probability of each choice; choices without a weight share equally what is left to 1."""
    given = sum(choice.weight or 0.0 for choice in choices)
    open_choices = sum(choice.weight is None for choice in choices)
    if not choices or given > 1.001 or (not open_choices and given < 0.999):
        raise ValueError("voice voice_probabilities must sum to 1.0")
    rest = max(1.0 - given, 0.0) / open_choices if open_choices else 0.0
    return [rest if choice.weight is None else choice.weight for choice in choices]
