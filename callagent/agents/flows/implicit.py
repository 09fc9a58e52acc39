"""What the tools do that are not project functions: save entities, choose a condition, hand off, send a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from callagent.agents.flows.conversation import Conversation
from callagent.agents.flows.dialogue import Dialogue
from callagent.agents.flows.handoffs import HandoffTarget
from callagent.agents.flows.returns import Decision, HandoffRequest, Transition
from callagent.agents.flows.sms import SmsTemplate
from callagent.agents.flows.steps import Condition
from callagent.agents.flows.tools import SaveEntities, Target
from callagent.agents.flows.validation import validate


async def implicit_decision(dialogue: Dialogue, target: Target, arguments: Mapping[str, Any]) -> Decision:
    """What a call of the tool comes to; it is the caller's to apply."""
    match target:
        case SaveEntities():
            return await save_entities(dialogue, target, arguments)
        case Condition():
            return choose_condition(dialogue.conversation, target)
        case HandoffTarget():
            reason, utterance = (str(arguments.get(key) or "") for key in ("reason", "utterance"))
            return Decision(utterance=utterance or None, handoff=HandoffRequest(target.name, reason or target.name))
        case SmsTemplate():
            return text_message(dialogue.conversation, target)
        case _:
            return Decision()


def text_message(conversation: Conversation, template: SmsTemplate) -> Decision:
    """Queue a template for the caller's own number."""
    number = conversation.info.caller
    if not number:
        return Decision(content="Error: the caller's number is not known; the text message cannot be sent.")
    sender = template.senders.get(conversation.settings.environment, "")
    refused = conversation.queue_message(
        {"kind": "template", "to_number": number, "from_number": sender, "template": template.name}
    )
    return Decision(content=refused or "The text message is being sent.")


async def save_entities(dialogue: Dialogue, target: SaveEntities, arguments: Mapping[str, Any]) -> Decision:
    """Check and keep what the model extracted; an invalid value is told to it, a former valid one stays."""
    conversation = dialogue.conversation
    saved: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for entity in target.entities:
        value = arguments.get(entity.name)
        if value is None or value == "":
            continue
        result = validate(entity, value, conversation.now().date())
        if result.valid:
            conversation.entities[entity.name] = result
            saved[entity.name] = result.native
        else:
            errors[entity.name] = result.error or "not valid"
    if saved:
        await dialogue.runner.set_state(saved)
    unknown = [name for name in arguments if name not in {entity.name for entity in target.entities}]
    errors |= dict.fromkeys(unknown, "This is not collected here.")
    return Decision(content=json.dumps({"saved": saved, "errors": errors}, default=str))


def choose_condition(conversation: Conversation, condition: Condition) -> Decision:
    """Follow a condition of the step, when everything it needs is there."""
    missing = [name for name in condition.required_entities if name not in conversation.entities]
    if missing:
        return Decision(content=f"Error: still needed before '{condition.name}': {', '.join(missing)}.")
    if condition.exits:
        return Decision(transition=Transition(exit_flow=True))
    return Decision(transition=Transition(goto_step=condition.child_step))
