"""The messages of one request to the model, in the platform's order, and the references in their texts.

References (`{{fn:name}}`, `$variable`, conditional tags) are resolved anew for every request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.format import Entity, Step, Topic, Variants, same_language, translate
from callagent.agents.kernel import tool_name
from callagent.models import Message

REFERENCE = re.compile(r"\{\{\s*(\w+):([^}]*)\}\}")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_VARIANT = re.compile(r"\$\{variant_(\w+)\}")
_TAG = re.compile(r"<(channel|language):([^<>]+)>|</(channel|language)(?::[^<>]*)?>")
_SPELLINGS = {"sms": "twilio_sms", "va": "attr"}
"""Alternative prefix of a reference -> the prefix that is used below."""
TOOL_PREFIXES = ("fn", "ft", "ho", "twilio_sms")
_TOOL_NAME_PREFIXES = {"ho": "transfer_to", "twilio_sms": "send_sms"}


@dataclass(frozen=True, slots=True)
class ToolReference:
    kind: str
    """`fn`, `ft`, `ho` or `twilio_sms`."""
    name: str
    """As the project calls it."""

    @property
    def tool(self) -> str:
        """The name under which the model may call it."""
        prefix = _TOOL_NAME_PREFIXES.get(self.kind)
        return tool_name(prefix, self.name) if prefix else self.name


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that references resolve to: a view of the call at one instant."""

    state: Mapping[str, object] = field(default_factory=dict)
    variants: Variants = field(default_factory=Variants)
    variant: str | None = None
    entities: Mapping[str, Entity] = field(default_factory=dict)
    collected: Mapping[str, str] = field(default_factory=dict)
    """Entity -> valid value."""
    translations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    language: str | None = None
    channel: str = "voice"


@dataclass(frozen=True, slots=True)
class Resolved:
    text: str
    tools: tuple[ToolReference, ...]
    """In order of appearance, each once."""


def scope_of(conversation: Conversation) -> Scope:
    """Return the values that references resolve to at this moment of a call."""
    return Scope(
        state=conversation.state,
        variants=conversation.project.variants,
        variant=conversation.variant,
        entities=conversation.project.entities,
        collected={name: result.value for name, result in conversation.entities.items()},
        translations=conversation.project.translations,
        language=conversation.language,
        channel=conversation.channel,
    )


def resolve(text: str, scope: Scope) -> Resolved:
    """Substitute all references of a text; values may hold references themselves, one level deep."""
    if "<" in text:
        text = keep_conditional(text, scope)
    # Most of a request's texts hold no reference, and a search for the characters is cheaper than a substitution.
    if "$" in text or "{{" in text:
        # Substituted twice, because a value may hold references, but not until nothing changes: a value that names
        # itself would never end.
        once = _substitute(text, scope)
        text = once if once == text else _substitute(once, scope)
    if "{{" not in text:
        return Resolved(text, ())
    tools: dict[ToolReference, None] = {}

    def replace_tool(match: re.Match[str]) -> str:
        prefix = _SPELLINGS.get(match.group(1), match.group(1))
        # An unknown prefix stays as it is written; `callagent check` has reported it.
        if prefix not in TOOL_PREFIXES:
            return match.group(0)
        reference = ToolReference(prefix, match.group(2).strip())
        tools[reference] = None
        return reference.tool

    return Resolved(REFERENCE.sub(replace_tool, text), tuple(tools))


def resolve_text(text: str, scope: Scope) -> str:
    return resolve(text, scope).text


def resolve_header(text: str, scope: Scope) -> str | None:
    """Resolve the value of a SIP header; None where a variable or attribute in it has no value.

    The caller leaves such a header out: its receiver could not tell the name of a variable from a value.
    """
    named = [(_SPELLINGS.get(prefix, prefix), name) for prefix, name, _ in find_references(text)]
    variables = _VARIABLE.findall(text) + [name for prefix, name in named if prefix == "vrbl"]
    attributes = _VARIANT.findall(text) + [name for prefix, name in named if prefix == "attr"]
    # Only these values differ from call to call; `callagent check` reports missing translations.
    values = [scope.state.get(name) for name in variables]
    values += [scope.variants.value(scope.variant, name) for name in attributes]
    if any(value is None or value == "" for value in values):
        return None
    return resolve_text(text, scope)


def find_references(text: str) -> list[tuple[str, str, int]]:
    """Return every reference as (prefix, name, line offset from 0), alternative spellings translated."""
    return [
        (_SPELLINGS.get(m.group(1), m.group(1)), m.group(2).strip(), text.count("\n", 0, m.start()))
        for m in REFERENCE.finditer(text)
    ]


def keep_conditional(text: str, scope: Scope) -> str:
    """Keep the `<channel:…>` and `<language:…>` parts that apply. Tags nest; one left open ends with the text."""
    parts: list[str] = []
    # One entry for each open tag: whether it applies. Text is kept where all open tags apply.
    open_tags: list[bool] = []
    position = 0
    for match in _TAG.finditer(text):
        if all(open_tags):
            parts.append(text[position : match.start()])
        position = match.end()
        if match.group(1):
            open_tags.append(_applies(match.group(1), match.group(2), scope))
        # A closing tag without an opening one is removed, like every other tag.
        elif open_tags:
            open_tags.pop()
    if all(open_tags):
        parts.append(text[position:])
    return "".join(parts)


def _applies(kind: str, argument: str, scope: Scope) -> bool:
    wanted = [each.strip().lower() for each in argument.split("|")]
    if kind == "channel":
        return scope.channel in wanted
    # `<language:en>` covers all regions of English.
    return any(same_language(each, scope.language) for each in wanted)


def _substitute(text: str, scope: Scope) -> str:
    text = REFERENCE.sub(lambda match: _value(match, scope), text)
    text = _VARIANT.sub(lambda match: _attribute(match.group(1), scope, match.group(0)), text)
    # An unknown name stays as it is, because a text may hold a `$` that begins no variable.
    return _VARIABLE.sub(lambda m: str(scope.state[m.group(1)]) if m.group(1) in scope.state else m.group(0), text)


def _value(match: re.Match[str], scope: Scope) -> str:
    prefix, name = _SPELLINGS.get(match.group(1), match.group(1)), match.group(2).strip()
    if prefix == "vrbl":
        return str(scope.state[name]) if name in scope.state else match.group(0)
    if prefix == "attr":
        return _attribute(name, scope, match.group(0))
    if prefix == "tn":
        found = translate(scope.translations, name, scope.language)
        return match.group(0) if found is None else found
    if prefix == "entity":
        return scope.collected.get(name, name)
    return match.group(0)


def _attribute(name: str, scope: Scope, unresolved: str) -> str:
    value = scope.variants.value(scope.variant, name)
    return unresolved if value is None else str(value)


_LANGUAGE_NAMES = {
    "ar": "Arabic", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "hi": "Hindi", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ru": "Russian",
    "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip


class Prompt:
    """The project's texts for one request, resolved against the conversation as it stands."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._scope = scope_of(conversation)
        self._project = conversation.project
        self._texts = conversation.project.experimental.prompts
        self._resolved: dict[str, Resolved] = {}
        """Cache of resolved texts: the tools and the messages of a request need many of the same ones."""

    def resolve(self, text: str) -> Resolved:
        found = self._resolved.get(text)
        if found is None:
            found = self._resolved[text] = resolve(text, self._scope)
        return found

    def text(self, text: str) -> str:
        return self.resolve(text).text

    def messages(self, topics: list[Topic]) -> list[Message]:
        """Return all messages for the model: the system message, the history, and in a flow the step's prompt last."""
        # The step comes after the history: models follow best what they have read last.
        history = self._conversation.history.messages(self.text, self._texts.silence)
        messages: list[Message] = [{"role": "system", "content": self._system(topics)}, *history]
        step = self._conversation.step
        if step is not None:
            messages.append({"role": "system", "content": self._step(step)})
        return messages

    def references(self, topics: list[Topic]) -> list[ToolReference]:
        """Return the tools that the texts name for the model, in order of appearance, each once."""
        step = self._conversation.step
        in_flow = self._conversation.position.flow is not None
        found: dict[ToolReference, None] = {}
        # A default step has implicit tools in place of named ones; `callagent check` refuses functions in it.
        if step is not None and not step.is_default:
            found.update(dict.fromkeys(self.resolve(step.prompt).tools))
        for text in (self._project.rules, *(each.action for each in self._project.guardrails)):
            found.update(dict.fromkeys(self.resolve(text).tools))
        if not in_flow or self._conversation.position_settings.offers_topic_functions:
            # Inside flows a topic's functions are not offered unless the project wants them there: they could lead
            # away from the step.
            for topic in topics:
                found.update(dict.fromkeys(self.resolve(topic.actions).tools))
        # A result such as "Call {{fn:handoff}} with reason=…" is an instruction for what comes next.
        for content in self._conversation.history.recent_contents(turns=2):
            found.update(dict.fromkeys(self.resolve(content).tools))
        return list(found)

    def _system(self, topics: list[Topic]) -> str:
        project = self._project
        parts = [project.identity, project.rules, self._guardrails(), self._safety(), self._channel(), self._language()]
        if topics:
            parts.append(self._topics(topics))
        return "\n\n".join(self.text(part) for part in parts if part)

    def _guardrails(self) -> str:
        rules = [
            f"- {each.prompt}" + (f" Then: {each.action}" if each.action else "") for each in self._project.guardrails
        ]
        return "Guardrails:\n" + "\n".join(rules) if rules else ""

    def _safety(self) -> str:
        safety = self._conversation.safety
        return safety.as_prompt() if safety else ""

    def _channel(self) -> str:
        channel = self._conversation.channel
        greeting = self._project.voice.greeting
        if channel == "webchat" and self._project.chat is not None:
            greeting = self._project.chat
        decorator = self._texts.decorators.get(channel, "")
        return "\n".join(part for part in (decorator, greeting.style_prompt) if part)

    def _language(self) -> str:
        language = self._conversation.language
        parts = []
        # A model answers in the language of its instructions, usually English, unless it is told otherwise.
        if not language.lower().startswith("en"):
            parts.append(self._texts.non_english_system.replace("{language_name}", _language_name(language)))
        if self._project.languages.additional:
            names = ", ".join(_language_name(code) for code in self._project.languages.all)
            parts.append(self._texts.language_switching_instructions.replace("{available_languages}", names))
        return "\n".join(part for part in parts if part)

    def _topics(self, topics: list[Topic]) -> str:
        texts, language = self._texts, self._conversation.language
        entries = "\n\n".join(_topic_entry(topic, self.text) for topic in topics)
        precursor = texts.context_information_precursor
        # The topics are usually written in English: a project may have a text that tells the model to translate.
        if not language.lower().startswith("en") and texts.non_english_rag:
            precursor += "\n" + texts.non_english_rag.replace("{language_name}", _language_name(language))
        return f"{precursor}\n\n{texts.context_information.replace('{topics_prompt}', entries)}"

    def _step(self, step: Step) -> str:
        parts = [self._texts.step_header, step.prompt, self._texts.step_footer]
        if step.is_default:
            # Between the prompt and the footer, so that the footer stays last.
            parts.insert(2, self._collection_rules(step))
        return "\n\n".join(self.text(part) for part in parts if part)

    def _collection_rules(self, step: Step) -> str:
        """Describe the entities that a default step collects and the conditions that lead on."""
        # Without today's date a model cannot tell which date "next Tuesday" is.
        lines = [f"Today is {self._conversation.now():%A %Y-%m-%d}."]
        if step.entities:
            lines.append("Information to collect; pass what the caller gives to save_entities:")
        for name in step.entities:
            entity, result = self._project.entities.get(name), self._conversation.entities.get(name)
            if entity is not None:
                state = f"collected: {result.value}" if result else "not collected yet"
                lines.append(f"- {name} ({entity.type}, {state}): {entity.description}")
        if step.conditions:
            lines.append("When one of these holds, call its function at once:")
        for condition in step.conditions:
            needs = f" (needs {', '.join(condition.required_entities)})" if condition.required_entities else ""
            lines.append(f"- {condition_tool(step, condition.name)}: {condition.name}. {condition.description}{needs}")
        return "\n".join(lines)


def _language_name(code: str) -> str:
    return _LANGUAGE_NAMES.get(code.split("-")[0], code)


def condition_tool(step: Step, condition: str) -> str:
    """Return the name of a condition's implicit tool, unique within the step."""
    # Two conditions may become the same name, as tool names hold ASCII only: the later one gets a number.
    names: dict[str, str] = {}
    for each in step.conditions:
        name = tool_name("condition", each.name)
        names[each.name] = name if name not in names.values() else f"{name[:60]}_{len(names)}"
    return names[condition]


def _topic_entry(topic: Topic, resolve_text: Callable[[str], str]) -> str:
    return "\n".join(
        (
            f"faq_id: {topic.name}",
            f"faq_example_questions: {' | '.join(topic.examples)}",
            # Content never offers a tool: a reference in it is plain text.
            f"faq_description: {resolve_text(topic.content)}",
            f"faq_instructions: {resolve_text(topic.actions)}",
        )
    )
