"""Decisions of project functions: a return value read as a `Decision`, and where a transition leads in the flows.

Nothing is carried out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callagent.agents.flows.format import Project
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, object_at

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

    def as_json(self) -> MutableJsonObject:
        return {"goto_flow": self.goto_flow, "goto_step": self.goto_step, "exit_flow": self.exit_flow}


@dataclass(frozen=True, slots=True)
class HandoffRequest:
    destination: str | None
    """None: the default handoff."""
    reason: str | None = None
    method: str | None = None
    """`refer`, `invite` or `bye`; None: as configured."""
    number: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """Effects of a function, in the order in which they are applied."""

    variant: str | None = None
    language: str | None = None
    voice: JsonObject | None = None
    transition: Transition = Transition()
    content: str = ""
    """The tool result for the model."""
    utterance: str | None = None
    """None: the model goes on in the same turn. Empty: nothing is said and the turn ends."""
    channel: str = "speech"
    """Of the utterance: `speech` or `dtmf`."""
    end_turn: bool = True
    handoff: HandoffRequest | None = None
    hangup: bool = False
    listen: JsonObject | None = None
    unusable: bool = False
    """The function returned a value of a type that is not part of the return protocol."""

    @property
    def ends_call(self) -> bool:
        return self.handoff is not None or self.hangup

    @property
    def asks_model(self) -> bool:
        """Whether the model is asked again in the same turn."""
        return not self.ends_call and (self.utterance is None or not self.end_turn)

    @property
    def skips_other_tool_calls(self) -> bool:
        """Whether further tool calls of the model's answer are skipped."""
        return self.ends_call or self.utterance is not None or bool(self.transition)


def decide(answer: JsonObject) -> Decision:
    """Return a function's decision; `answer` is the worker's answer to a call without an error."""
    effects = object_at(answer, "effects")
    kind, value = answer.get("returned_kind"), answer.get("returned")
    if kind == "dict" and isinstance(value, Mapping):
        return _from_dict(value, effects)
    if kind == "str":
        return _from_dict({"content": str(value)}, effects)
    # A function that returns nothing decides by the effects that it queued, or leaves the decision to the model.
    if kind == "none" or value is None:
        return _from_dict({}, effects)
    # Variant and language were set by calls of their own and still apply. A queued transition or handoff does not:
    # the unusable value may have been meant to replace it.
    variant, language = _name(effects.get("variant")), _name(effects.get("language"))
    return Decision(content=BAD_RETURN, unusable=True, variant=variant, language=language)


def _from_dict(value: JsonObject, effects: JsonObject) -> Decision:
    # The returned value wins over effects that methods of `conv` queued, and its own utterance wins over the one in
    # its handoff.
    queued = object_at(effects, "handoff")
    handoff = _returned_handoff(value.get("handoff"), value) or (_queued_handoff(queued) if queued else None)
    utterance = _first_text(
        value.get("utterance"), _handoff_utterance(value), queued.get("utterance"), effects.get("say")
    )
    return Decision(
        variant=_name(value.get("variant")) or _name(effects.get("variant")),
        language=_name(effects.get("language")),
        voice=object_at(effects, "voice") or None,
        transition=_returned_transition(value.get("transition")) or _queued_transition(effects),
        # A result of megabytes would not fit the model's context window.
        content=str(value.get("content") or "")[:MAX_CONTENT],
        utterance=utterance,
        channel="dtmf" if str(value.get("utterance_channel") or "").upper() == "DTMF" else "speech",
        # Only a literal False continues the turn; a value without `end_turn` ends it.
        end_turn=value.get("end_turn") is not False,
        handoff=handoff,
        hangup=bool(value.get("hangup")),
        # An empty `listen` counts, too: the function asks to listen with unchanged settings.
        listen=object_at(value, "listen") if isinstance(value.get("listen"), Mapping) else None,
    )


def _first_text(*candidates: JsonValue) -> str | None:
    return next((str(candidate) for candidate in candidates if candidate is not None), None)


def _name(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _handoff_utterance(value: JsonObject) -> JsonValue:
    return object_at(value, "handoff").get("utterance")


def _returned_transition(value: JsonValue) -> Transition:
    if not isinstance(value, Mapping):
        return Transition()
    return Transition(_name(value.get("goto_flow")), _name(value.get("goto_step")), bool(value.get("exit_flow")))


def _queued_transition(effects: JsonObject) -> Transition:
    """Return the transition that a function queued: `goto_flow` wins over `goto_step`, and both over `exit_flow`."""
    flow, step = _name(effects.get("goto_flow")), _name(effects.get("goto_step"))
    if flow:
        return Transition(goto_flow=flow)
    if step:
        return Transition(goto_step=step)
    return Transition(exit_flow=bool(effects.get("exit_flow")))


def _returned_handoff(value: JsonValue, returned: JsonObject) -> HandoffRequest | None:
    if not value:
        return None
    if not isinstance(value, Mapping):
        # `"handoff": "sales"`, or `"handoff": true` for the default one.
        return HandoffRequest(_name(value), _name(returned.get("reason")))
    method = next((name for name in ("refer", "invite", "bye", "cxone") if name in value), None)
    details = object_at(value, method or "")
    return HandoffRequest(
        destination=_name(value.get("type")) or _name(value.get("destination")),
        reason=_name(value.get("reason")),
        # `cxone`, a contact centre's own transfer, is not supported: the call ends with its headers, as for `bye`.
        method="bye" if method == "cxone" else method,
        number=_name(details.get("phone_number")),
        headers=_headers(details.get("sip_headers")),
    )


def _queued_handoff(queued: JsonObject) -> HandoffRequest:
    return HandoffRequest(
        destination=_name(queued.get("destination")),
        reason=_name(queued.get("reason")) or _name(queued.get("destination")),
        number=_name(queued.get("route")),
        headers=_headers(queued.get("sip_headers")),
    )


def _headers(value: JsonValue) -> dict[str, str]:
    # The platform's documents have a list of `{"key", "value"}`, its Python API a dict. Projects return either.
    if isinstance(value, list):
        return {str(each.get("key")): str(each.get("value")) for each in value if isinstance(each, Mapping)}
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Position:
    """Where the call is, by display names; both are None outside flows."""

    flow: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """The new position after a transition, and what is wrong with the transition."""

    position: Position
    moved: bool
    """Whether a step was entered (perhaps the same again) or the flow was left."""
    problem: str | None = None


def resolve_transition(project: Project, here: Position, transition: Transition) -> Move:
    """Return where a transition leads; an unknown flow or step leads nowhere and gives a `problem`."""
    if transition.goto_flow:
        return _enter_flow(project, here, transition)
    if transition.goto_step:
        return _enter_step(project, here, transition.goto_step)
    if not transition.exit_flow:
        return Move(here, False)
    if here.flow is None:
        return Move(here, False, "exit_flow was called outside of a flow.")
    # Outside flows, topics and rules of the whole project apply.
    return Move(Position(), True)


def _enter_flow(project: Project, here: Position, transition: Transition) -> Move:
    flow = project.flows.get(transition.goto_flow or "")
    if flow is None:
        return Move(here, False, f"There is no flow '{transition.goto_flow}'.")
    # A transition may name flow and step together; with the flow alone it enters at the start.
    step = transition.goto_step or flow.start_step
    if not flow.has_step(step):
        return Move(here, False, f"There is no step '{step}' in flow '{flow.name}'.")
    return Move(Position(flow.name, step), True)


def _enter_step(project: Project, here: Position, step: str) -> Move:
    if here.flow is None:
        return Move(here, False, f"goto_step('{step}') was called outside of a flow.")
    if not project.flows[here.flow].has_step(step):
        return Move(here, False, f"There is no step '{step}' in flow '{here.flow}'.")
    return Move(Position(here.flow, step), True)
