"""The tools offered to the model with one request, and the execution of those that are not project functions.

The latter are handoffs, SMS templates, and the implicit tools of default steps: save entities and choose a condition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from callagent.agents.flows import format
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.decision import Decision, HandoffRequest, Transition
from callagent.agents.flows.engine.entity_values import validate
from callagent.agents.flows.engine.function_calls import FunctionCalls
from callagent.agents.flows.engine.prompt import ToolReference, condition_tool
from callagent.agents.kernel import clean_name
from callagent.json_values import JsonObject, MutableJsonObject, list_at
from callagent.models import Tool

SAVE_ENTITIES = "save_entities"
_FORMS = {
    "date": "as YYYY-MM-DD",
    "time": "as HH:MM, 24 hours",
    "phone_number": "digits only, with the country code if it was said",
}
"""How the model is asked to write a value, by the type of the entity."""


@dataclass(frozen=True, slots=True)
class SaveEntities:
    """The implicit tool of a default step that saves the values that the caller gave."""

    entities: tuple[format.Entity, ...]


Target = format.ProjectFunction | format.HandoffTarget | format.SmsTemplate | SaveEntities | format.Condition


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool under the name the model sees, and what is executed when the model calls it."""

    name: str
    target: Target
    schema: Tool


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one request."""

    tools: tuple[OfferedTool, ...]
    conditions: Mapping[str, format.Condition]
    """All conditions of the step by tool name, also those not offered yet: one answer may save the entities of a
    condition and choose it.
    """

    @property
    def schemas(self) -> list[Tool]:
        return [tool.schema for tool in self.tools]

    def find(self, name: str) -> Target | None:
        found = next((tool.target for tool in self.tools if tool.name == name), None)
        if found is not None:
            return found
        # A condition is also found by the name that the prompt shows, which models like to use.
        wanted = clean_name(name)
        return next((c for tool, c in self.conditions.items() if wanted in (tool, clean_name(c.name))), None)


def build_tools(
    project: format.Project,
    references: Iterable[ToolReference],
    flow: str | None,
    step: format.Step | None,
    collected: Iterable[str],
    describe: Callable[[str], str],
) -> Toolset:
    """Build the tools of a request. `collected`: entities with a valid value; `describe` resolves descriptions."""
    found: dict[str, OfferedTool] = {}
    conditions: dict[str, format.Condition] = {}
    if step is not None and step.is_default:
        conditions = {condition_tool(step, each.name): each for each in step.conditions}
        for tool in _implicit_tools(project, step, conditions, set(collected)):
            found[tool.name] = tool
    for reference in references:
        target = _target(project, reference, flow)
        if target is not None and reference.tool not in found:
            found[reference.tool] = OfferedTool(reference.tool, target, _schema(reference.tool, target, describe))
    # Prompts need not name the functions of MCP servers: they are offered everywhere outside flows. In a flow, a step
    # offers what its prompt names and nothing else.
    for name, function in (project.remote if flow is None else {}).items():
        found.setdefault(name, OfferedTool(name, function, _schema(name, function, describe)))
    return Toolset(tuple(found.values()), conditions)


def _target(project: format.Project, reference: ToolReference, flow: str | None) -> Target | None:
    if reference.kind == "ho":
        return format.find_handoff(project.handoffs, reference.name)
    if reference.kind == "twilio_sms":
        return project.sms_templates.get(reference.name)
    in_flow = project.flows[flow].functions if flow is not None and flow in project.flows else {}
    # `ft` means a function of the flow and `fn` one of the project. Where the meant one is missing the other is
    # taken, and `callagent check` reports it.
    places = (in_flow, project.functions) if reference.kind == "ft" else (project.functions, in_flow)
    return places[0].get(reference.name) or places[1].get(reference.name)


def _implicit_tools(
    project: format.Project, step: format.Step, conditions: Mapping[str, format.Condition], collected: set[str]
) -> list[OfferedTool]:
    tools = []
    entities = tuple(project.entities[name] for name in step.entities if name in project.entities)
    if entities:
        properties = {entity.name: _entity_schema(entity) for entity in entities}
        description = "Save what the caller has given; leave out what was not given."
        schema = function_schema(SAVE_ENTITIES, description, properties, ())
        tools.append(OfferedTool(SAVE_ENTITIES, SaveEntities(entities), schema))
    for name, condition in conditions.items():
        # A condition whose entities are missing is not offered, because models would choose it too early.
        if collected.issuperset(condition.required_entities):
            text = f"{condition.name}. {condition.description}".strip()
            tools.append(OfferedTool(name, condition, function_schema(name, text, {}, ())))
    return tools


def _entity_schema(entity: format.Entity) -> MutableJsonObject:
    hint = _FORMS.get(entity.type, "")
    description = f"{entity.description} ({hint})" if hint else entity.description
    if entity.type == "numeric":
        return {"type": "number" if entity.config.get("has_decimal") else "integer", "description": description}
    schema: MutableJsonObject = {"type": "string", "description": description}
    if entity.type == "enum":
        schema["enum"] = [str(option) for option in list_at(entity.config, "options")]
    return schema


def _schema(name: str, target: Target, describe: Callable[[str], str]) -> Tool:
    match target:
        # A function of an MCP server brings its own schema, which is passed on as it is.
        case format.ProjectFunction(schema=schema) if schema is not None:
            return {
                "type": "function",
                "function": {"name": name, "description": target.description, "parameters": dict(schema)},
            }
        case format.ProjectFunction():
            properties = {
                p.name: {"type": format.SCHEMA_TYPES[p.type], "description": describe(p.description)}
                for p in target.parameters
            }
            return function_schema(name, describe(target.description), properties, tuple(properties))
        case format.HandoffTarget():
            properties = {
                "reason": {"type": "string", "description": "Why the call is transferred."},
                "utterance": {"type": "string", "description": "What to say to the caller before the transfer."},
            }
            text = f"Transfer the call to {target.name}. {target.description}".strip()
            return function_schema(name, text, properties, ())
        case format.SmsTemplate():
            return function_schema(name, f"Send the text message '{target.name}' to the caller.", {}, ())
        case _:
            return function_schema(name, "", {}, ())


def function_schema(name: str, description: str, properties: JsonObject, required: Sequence[str]) -> Tool:
    parameters: JsonObject = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


async def execute_implicit_tool(functions: FunctionCalls, target: Target, arguments: JsonObject) -> Decision:
    """Execute a tool that is not a project function; return its decision, which is not applied yet."""
    match target:
        case SaveEntities():
            return await save_entities(functions, target, arguments)
        case format.Condition():
            return choose_condition(functions.conversation, target)
        case format.HandoffTarget():
            reason, utterance = (str(arguments.get(key) or "") for key in ("reason", "utterance"))
            return Decision(utterance=utterance or None, handoff=HandoffRequest(target.name, reason or target.name))
        case format.SmsTemplate():
            return queue_text_message(functions.conversation, target)
        case _:
            return Decision()


def queue_text_message(conversation: Conversation, template: format.SmsTemplate) -> Decision:
    """Queue a template's text message to the caller's own number."""
    number = conversation.info.caller
    if not number:
        return Decision(content="Error: the caller's number is not known; the text message cannot be sent.")
    sender = template.senders.get(conversation.settings.environment, "")
    refused = conversation.queue_message(
        {"kind": "template", "to_number": number, "from_number": sender, "template": template.name}
    )
    return Decision(content=refused or "The text message is being sent.")


async def save_entities(functions: FunctionCalls, target: SaveEntities, arguments: JsonObject) -> Decision:
    """Validate and store extracted values. Invalid ones are reported to the model; an earlier valid value stays."""
    conversation = functions.conversation
    saved: MutableJsonObject = {}
    errors: dict[str, str] = {}
    for entity in target.entities:
        value = arguments.get(entity.name)
        # Left out, null and empty mean the same: the caller has not given it.
        if value is None or value == "":
            continue
        result = validate(entity, value, conversation.now().date())
        if result.valid:
            conversation.entities[entity.name] = result
            saved[entity.name] = result.native
        else:
            errors[entity.name] = result.error or "not valid"
    if saved:
        await functions.runner.set_state(saved)
    # Models like to save more than they were asked for, so the answer says that these values were not saved.
    unknown = [name for name in arguments if name not in {entity.name for entity in target.entities}]
    errors |= dict.fromkeys(unknown, "This is not collected here.")
    return Decision(content=json.dumps({"saved": saved, "errors": errors}, default=str))


def choose_condition(conversation: Conversation, condition: format.Condition) -> Decision:
    """Return the decision that follows a condition, or an error while entities that it needs are missing."""
    missing = [name for name in condition.required_entities if name not in conversation.entities]
    if missing:
        return Decision(content=f"Error: still needed before '{condition.name}': {', '.join(missing)}.")
    if condition.exits:
        return Decision(transition=Transition(exit_flow=True))
    return Decision(transition=Transition(goto_step=condition.child_step))
