"""What a function's return value means: from the worker's answer to a decision, without doing anything yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_CONTENT = 20_000
"""Characters of a function's result that the model is shown."""
BAD_RETURN = "Error: the function returned a value of a type that cannot be used."


@dataclass(frozen=True, slots=True)
class Transition:
    goto_flow: str | None = None
    goto_step: str | None = None
    exit_flow: bool = False

    def __bool__(self) -> bool:
        return bool(self.goto_flow or self.goto_step or self.exit_flow)

    def as_json(self) -> dict[str, Any]:
        return {"goto_flow": self.goto_flow, "goto_step": self.goto_step, "exit_flow": self.exit_flow}


@dataclass(frozen=True, slots=True)
class HandoffRequest:
    destination: str | None
    """None: the default handoff."""
    reason: str | None = None
    method: str | None = None
    """None: as configured."""
    number: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen after a function, in the order of the fields."""

    variant: str | None = None
    language: str | None = None
    voice: Mapping[str, Any] | None = None
    transition: Transition = Transition()
    content: str = ""
    """The tool result for the model."""
    utterance: str | None = None
    """None: the model goes on in the same turn. Empty: nothing is said and the turn ends."""
    channel: str = "speech"
    end_turn: bool = True
    handoff: HandoffRequest | None = None
    hangup: bool = False
    listen: Mapping[str, Any] | None = None
    unusable: bool = False
    """The function returned something that is not part of the protocol."""

    @property
    def ends_call(self) -> bool:
        return self.handoff is not None or self.hangup

    @property
    def asks_model(self) -> bool:
        """The model is asked again in the same turn."""
        return not self.ends_call and (self.utterance is None or not self.end_turn)

    @property
    def stops_other_calls(self) -> bool:
        """Further tool calls of the same answer are not executed."""
        return self.ends_call or self.utterance is not None or bool(self.transition)


def decide(answer: Mapping[str, Any]) -> Decision:
    """The decision for a function that returned; `answer` is the worker's."""
    effects: Mapping[str, Any] = answer.get("effects") or {}
    kind, value = answer.get("returned_kind"), answer.get("returned")
    if kind == "dict" and isinstance(value, dict):
        return _from_dict(value, effects)
    if kind == "str":
        return _from_dict({"content": str(value)}, effects)
    if kind == "none" or value is None:
        return _from_dict({}, effects)
    return Decision(content=BAD_RETURN, unusable=True, variant=effects.get("variant"), language=effects.get("language"))


def _from_dict(value: Mapping[str, Any], effects: Mapping[str, Any]) -> Decision:
    queued: Mapping[str, Any] = effects.get("handoff") or {}
    handoff = _handoff(value.get("handoff"), value) or (_queued_handoff(queued) if queued else None)
    utterance = _first_text(
        value.get("utterance"), _inner_utterance(value), queued.get("utterance"), effects.get("say")
    )
    return Decision(
        variant=_name(value.get("variant")) or effects.get("variant"),
        language=effects.get("language"),
        voice=effects.get("voice"),
        transition=_transition(value.get("transition")) or _queued_transition(effects),
        content=str(value.get("content") or "")[:MAX_CONTENT],
        utterance=utterance,
        channel="dtmf" if str(value.get("utterance_channel") or "").upper() == "DTMF" else "speech",
        end_turn=value.get("end_turn") is not False,
        handoff=handoff,
        hangup=bool(value.get("hangup")),
        listen=value["listen"] if isinstance(value.get("listen"), dict) else None,
    )


def _first_text(*candidates: Any) -> str | None:
    return next((str(candidate) for candidate in candidates if candidate is not None), None)


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _inner_utterance(value: Mapping[str, Any]) -> Any:
    handoff = value.get("handoff")
    return handoff.get("utterance") if isinstance(handoff, dict) else None


def _transition(value: Any) -> Transition:
    if not isinstance(value, dict):
        return Transition()
    return Transition(_name(value.get("goto_flow")), _name(value.get("goto_step")), bool(value.get("exit_flow")))


def _queued_transition(effects: Mapping[str, Any]) -> Transition:
    """`goto_flow` wins over `goto_step`, and both over `exit_flow`."""
    flow, step = _name(effects.get("goto_flow")), _name(effects.get("goto_step"))
    if flow:
        return Transition(goto_flow=flow)
    if step:
        return Transition(goto_step=step)
    return Transition(exit_flow=bool(effects.get("exit_flow")))


def _handoff(value: Any, returned: Mapping[str, Any]) -> HandoffRequest | None:
    if not value:
        return None
    if not isinstance(value, dict):
        return HandoffRequest(_name(value), _name(returned.get("reason")))
    method = next((name for name in ("refer", "invite", "bye", "cxone") if name in value), None)
    details = value.get(method or "")
    details = details if isinstance(details, dict) else {}
    return HandoffRequest(
        destination=_name(value.get("type")) or _name(value.get("destination")),
        reason=_name(value.get("reason")),
        # Contact-centre signals have no wire of their own here: the call is ended with its headers.
        method="bye" if method == "cxone" else method,
        number=_name(details.get("phone_number")),
        headers=_headers(details.get("sip_headers")),
    )


def _queued_handoff(queued: Mapping[str, Any]) -> HandoffRequest:
    return HandoffRequest(
        destination=_name(queued.get("destination")),
        reason=_name(queued.get("reason")) or _name(queued.get("destination")),
        number=_name(queued.get("route")),
        headers=_headers(queued.get("sip_headers")),
    )


def _headers(value: Any) -> dict[str, str]:
    if isinstance(value, list):
        value = {each.get("key"): each.get("value") for each in value if isinstance(each, dict)}
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}
