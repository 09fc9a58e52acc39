"""Value types of the project API: history, SMS, attachments, handoffs, outbound calls, web chat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

from callagent.agents.flows.runtime.failures import NotAvailable


@dataclass
class MetricEvent:
    name: str
    value: Any = None


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
    """Messages from outside during a call; none arrive on this server."""

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
    call_to_action: Any = None
    chart_spec: Any = None


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
    result: Any
    step_data: Any
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
    """What the caller said; an empty text is a silent turn."""

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


def history_of(entries: Iterable[Mapping[str, Any]]) -> list[UserInput | AgentResponse]:
    """From `{"role", "text"}`; the model's word for the agent is accepted too."""
    return [
        UserInput(str(entry.get("text") or "")) if entry.get("role") == "user" else AgentResponse(str(entry["text"]))
        for entry in entries
    ]
