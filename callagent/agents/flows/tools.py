"""What the model may call at a request: project functions, handoffs, SMS, and the implicit tools of default steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callagent.agents.flows.entities import Entity
from callagent.agents.flows.functions import SCHEMA_TYPES, ProjectFunction
from callagent.agents.flows.handoffs import HandoffTarget, find_handoff
from callagent.agents.flows.names import clean_name
from callagent.agents.flows.project import Project
from callagent.agents.flows.prompt import condition_tool
from callagent.agents.flows.references import ToolReference
from callagent.agents.flows.sms import SmsTemplate
from callagent.agents.flows.steps import Condition, Step
from callagent.models.protocol import Tool

SAVE_ENTITIES = "save_entities"
_FORMS = {
    "date": "as YYYY-MM-DD",
    "time": "as HH:MM, 24 hours",
    "phone_number": "digits only, with the country code if it was said",
}


@dataclass(frozen=True, slots=True)
class SaveEntities:
    """The implicit tool of a default step that takes what the caller said."""

    entities: tuple[Entity, ...]


Target = ProjectFunction | HandoffTarget | SmsTemplate | SaveEntities | Condition


@dataclass(frozen=True, slots=True)
class OfferedTool:
    name: str
    target: Target
    schema: Tool


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one request."""

    tools: tuple[OfferedTool, ...]
    conditions: Mapping[str, Condition]
    """All of the step, also those whose entities are not all there yet: one answer may save and choose."""

    @property
    def schemas(self) -> list[Tool]:
        return [tool.schema for tool in self.tools]

    def find(self, name: str) -> Target | None:
        found = next((tool.target for tool in self.tools if tool.name == name), None)
        if found is not None:
            return found
        wanted = clean_name(name)
        return next((c for tool, c in self.conditions.items() if wanted in (tool, clean_name(c.name))), None)


def build_tools(
    project: Project,
    references: Iterable[ToolReference],
    flow: str | None,
    step: Step | None,
    collected: Iterable[str],
    describe: Callable[[str], str],
) -> Toolset:
    """`collected`: entities with a valid value; `describe`: resolves references in descriptions."""
    found: dict[str, OfferedTool] = {}
    conditions: dict[str, Condition] = {}
    if step is not None and step.is_default:
        conditions = {condition_tool(step, each.name): each for each in step.conditions}
        for tool in _implicit_tools(project, step, conditions, set(collected)):
            found[tool.name] = tool
    for reference in references:
        target = _target(project, reference, flow)
        if target is not None and reference.tool not in found:
            found[reference.tool] = OfferedTool(reference.tool, target, _schema(reference.tool, target, describe))
    for name, function in (project.remote if flow is None else {}).items():
        found.setdefault(name, OfferedTool(name, function, _schema(name, function, describe)))
    return Toolset(tuple(found.values()), conditions)


def _target(project: Project, reference: ToolReference, flow: str | None) -> Target | None:
    if reference.kind == "ho":
        return find_handoff(project.handoffs, reference.name)
    if reference.kind == "twilio_sms":
        return project.sms_templates.get(reference.name)
    in_flow = project.flows[flow].functions if flow is not None and flow in project.flows else {}
    places = (in_flow, project.functions) if reference.kind == "ft" else (project.functions, in_flow)
    return places[0].get(reference.name) or places[1].get(reference.name)


def _implicit_tools(
    project: Project, step: Step, conditions: Mapping[str, Condition], collected: set[str]
) -> list[OfferedTool]:
    tools = []
    entities = tuple(project.entities[name] for name in step.entities if name in project.entities)
    if entities:
        properties = {entity.name: _entity_schema(entity) for entity in entities}
        description = "Save what the caller has given; leave out what was not given."
        schema = function_schema(SAVE_ENTITIES, description, properties, ())
        tools.append(OfferedTool(SAVE_ENTITIES, SaveEntities(entities), schema))
    for name, condition in conditions.items():
        if collected.issuperset(condition.required_entities):
            text = f"{condition.name}. {condition.description}".strip()
            tools.append(OfferedTool(name, condition, function_schema(name, text, {}, ())))
    return tools


def _entity_schema(entity: Entity) -> dict[str, Any]:
    hint = _FORMS.get(entity.type, "")
    description = f"{entity.description} ({hint})" if hint else entity.description
    if entity.type == "numeric":
        return {"type": "number" if entity.config.get("has_decimal") else "integer", "description": description}
    schema: dict[str, Any] = {"type": "string", "description": description}
    if entity.type == "enum":
        schema["enum"] = [str(option) for option in entity.config.get("options") or ()]
    return schema


def _schema(name: str, target: Target, describe: Callable[[str], str]) -> Tool:
    match target:
        case ProjectFunction(schema=schema) if schema is not None:
            return {
                "type": "function",
                "function": {"name": name, "description": target.description, "parameters": dict(schema)},
            }
        case ProjectFunction():
            properties = {
                p.name: {"type": SCHEMA_TYPES[p.type], "description": describe(p.description)}
                for p in target.parameters
            }
            return function_schema(name, describe(target.description), properties, tuple(properties))
        case HandoffTarget():
            properties = {
                "reason": {"type": "string", "description": "Why the call is transferred."},
                "utterance": {"type": "string", "description": "What to say to the caller before the transfer."},
            }
            text = f"Transfer the call to {target.name}. {target.description}".strip()
            return function_schema(name, text, properties, ())
        case SmsTemplate():
            return function_schema(name, f"Send the text message '{target.name}' to the caller.", {}, ())
        case _:
            return function_schema(name, "", {}, ())


def function_schema(name: str, description: str, properties: Mapping[str, Any], required: Sequence[str]) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
