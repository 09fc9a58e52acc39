"""The system messages of one request, in the platform's order."""

from __future__ import annotations

from collections.abc import Callable

from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.references import Resolved, ToolReference, resolve
from callagent.agents.flows.format import Step, Topic
from callagent.agents.kernel import tool_name
from callagent.models import Message

DEFAULT_SILENCE = "The user is silent."
DEFAULT_PRECURSOR = (
    "Use the context below to answer the caller. Follow faq_instructions; "
    "state as facts only what faq_description says."
)
DEFAULT_NON_ENGLISH = "Speak to the caller in {language_name} only."
_LANGUAGE_NAMES = {
    "ar": "Arabic", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "hi": "Hindi", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ru": "Russian",
    "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip


class Prompt:
    """The project's texts for one request, resolved against the conversation as it stands."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._scope = conversation.scope()
        self._project = conversation.project
        self._resolved: dict[str, Resolved] = {}
        """Every text is resolved once, although the tools and the messages of a request both need many of them."""

    def resolve(self, text: str) -> Resolved:
        found = self._resolved.get(text)
        if found is None:
            found = self._resolved[text] = resolve(text, self._scope)
        return found

    def text(self, text: str) -> str:
        return self.resolve(text).text

    def messages(self, topics: list[Topic]) -> list[Message]:
        """Return all messages for the model: the system message, the history, and in a flow the step's prompt last."""
        silence = self._project.experimental.prompt("silence", DEFAULT_SILENCE)
        history = self._conversation.history.messages(self.text, silence)
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
        if step is not None and not step.is_default:
            found.update(dict.fromkeys(self.resolve(step.prompt).tools))
        for text in (self._project.rules, *(each.action for each in self._project.guardrails)):
            found.update(dict.fromkeys(self.resolve(text).tools))
        if not in_flow or self._conversation.position_settings.offers_topic_functions:
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
        chosen = self._project.safety_of(self._conversation.channel)
        return chosen.as_prompt() if chosen else ""

    def _channel(self) -> str:
        channel = self._conversation.channel
        greeting = self._project.voice.greeting
        if channel == "webchat" and self._project.chat is not None:
            greeting = self._project.chat
        decorator = self._project.experimental.prompt(f"{channel}_decorator")
        return "\n".join(part for part in (decorator, greeting.style_prompt) if part)

    def _language(self) -> str:
        language, experimental = self._conversation.language, self._project.experimental
        parts = []
        if not language.lower().startswith("en"):
            template = experimental.prompt("non_english_system", DEFAULT_NON_ENGLISH)
            parts.append(template.replace("{language_name}", _language_name(language)))
        if self._project.languages.additional:
            names = ", ".join(_language_name(code) for code in self._project.languages.all)
            template = experimental.prompt("language_switching_instructions")
            parts.append(template.replace("{available_languages}", names))
        return "\n".join(part for part in parts if part)

    def _topics(self, topics: list[Topic]) -> str:
        experimental = self._project.experimental
        entries = "\n\n".join(_topic_entry(topic, self.text) for topic in topics)
        template = experimental.prompt("context_information", "CONTEXT_INFORMATION:\n{topics_prompt}")
        precursor = experimental.prompt("context_information_precursor", DEFAULT_PRECURSOR)
        language = self._conversation.language
        if not language.lower().startswith("en") and (foreign := experimental.prompt("non_english_rag")):
            precursor += "\n" + foreign.replace("{language_name}", _language_name(language))
        return f"{precursor}\n\n{template.replace('{topics_prompt}', entries)}"

    def _step(self, step: Step) -> str:
        experimental = self._project.experimental
        parts = [experimental.prompt("step_header"), step.prompt, experimental.prompt("step_footer")]
        if step.is_default:
            parts.insert(2, self._collecting(step))
        return "\n\n".join(self.text(part) for part in parts if part)

    def _collecting(self, step: Step) -> str:
        """Describe what a default step collects and where it can lead."""
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
