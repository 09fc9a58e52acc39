"""`callagent check` for flow projects: errors, and warnings of effects that the project's author may not expect."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from callagent.agents.flows import format
from callagent.agents.flows.engine import find_references
from callagent.agents.kernel import CheckReport, Finding, Findings, clean_name, has_nested_repeats, read_text
from callagent.errors import WorkerError
from callagent.json_values import JsonObject, number_at, object_at, objects_at, text_at
from callagent.workers import WorkerPool

_PROMPT_PREFIXES = ("fn", "twilio_sms", "ho", "attr", "vrbl", "tn")
"""Prefixes of the references that rules, topics and guardrails may hold."""
_IMPORT_SECONDS = 60.0
"""Deadline for the import of all function files."""
MIN_FILLER_WAIT = 1.0
"""Seconds that a model usually takes to its first word; an earlier filler is heard in nearly every turn."""


@dataclass(frozen=True, slots=True)
class _Text:
    """One text of the project that may hold references."""

    file: str
    line: int
    text: str
    allowed: Collection[str]
    flow: format.Flow | None = None


def check_project(path: Path) -> CheckReport:
    """Check a project without running its code."""
    project, findings = format.load_project(path)
    _Checker(project, findings).run()
    return findings.report()


async def check_imports(pool: WorkerPool) -> CheckReport:
    """Return warnings for function files that cannot be imported; the rest of the project works without them."""
    lease = await pool.lease({})
    try:
        answer = await lease.run({"op": "describe"}, timeout=_IMPORT_SECONDS, on_message=lambda message: None)
    except WorkerError as error:
        return CheckReport((), [Finding(".", 1, f"The project cannot be imported: {error}")])
    finally:
        await lease.close()
    return CheckReport((), sorted(_import_findings(answer)))


def _import_findings(answer: JsonObject) -> Iterator[Finding]:
    for function in objects_at(answer, "functions"):
        if error := object_at(function, "error"):
            message = f"The file cannot be imported: {error.get('type')}: {error.get('message')}"
            # The error may be in another file, which this one imports.
            yield Finding(
                text_at(error, "file") or text_at(function, "file"), int(number_at(error, "line", 1)), message
            )


class _Checker:
    def __init__(self, project: format.Project, findings: Findings) -> None:
        self._project = project
        self._findings = findings

    def run(self) -> None:
        for text in self._texts():
            self._check_references(text)
        for flow in self._project.flows.values():
            for step in flow.steps.values():
                self._check_default_step(flow, step)
        for function in self._project.all_functions():
            self._check_transitions(function)
            for line, remark in function.remarks:
                self._findings.warning(function.file, line, remark)
            self._check_delay_responses(function)
        self._check_filters()
        self._check_fillers()
        format.check_real_time(self._project.path, self._findings)
        self._check_settings()
        self._check_patterns()
        self._check_webchat()
        format.read_test_cases(self._project.path, self._project, self._findings)
        self._check_topic_contents()
        self._check_unused_functions()
        if not self._project.voice.greeting.message and self._project.start_function is None:
            self._findings.warning("voice/configuration.yaml", 1, "There is no greeting: the call starts in silence.")

    def _texts(self) -> Iterator[_Text]:
        project = self._project
        yield _Text("agent_settings/rules.txt", 1, project.rules, _PROMPT_PREFIXES)
        yield _Text("agent_settings/persona.txt", 1, project.identity, ("attr", "vrbl"))
        greeting = project.voice.greeting
        for text in (greeting.message, greeting.disclaimer):
            yield _Text("voice/configuration.yaml", 1, text, ("attr", "vrbl", "tn"))
        yield _Text("voice/configuration.yaml", 1, greeting.style_prompt, ())
        for topic in project.topics:
            yield _Text(topic.file, topic.actions_line, topic.actions, _PROMPT_PREFIXES)
        for guardrail in project.guardrails:
            yield _Text("agent_settings/guardrails.yaml", 1, guardrail.action, _PROMPT_PREFIXES)
        for template in project.sms_templates.values():
            yield _Text("config/sms_templates.yaml", 1, template.text, ("vrbl", "tn", "attr"))
        for flow in project.flows.values():
            for step in flow.steps.values():
                if not step.is_default:
                    allowed = ("fn", "ft", "twilio_sms", "ho", "attr", "entity", "vrbl", "tn")
                    yield _Text(step.file, step.prompt_line, step.prompt, allowed, flow)

    def _check_references(self, text: _Text) -> None:
        for prefix, name, offset in find_references(text.text):
            if prefix not in text.allowed or not self._is_known(prefix, name, text.flow):
                remedy = _remedy(prefix, name, prefix in text.allowed)
                message = f"Invalid references: ['{prefix}:{name}']. {remedy}"
                self._findings.error(text.file, text.line + offset, message)

    def _is_known(self, prefix: str, name: str, flow: format.Flow | None) -> bool:
        project = self._project
        match prefix:
            case "fn":
                return name in project.functions
            case "ft":
                return flow is not None and name in flow.functions
            case "ho":
                return format.find_handoff(project.handoffs, name) is not None
            case "twilio_sms":
                return name in project.sms_templates
            case "entity":
                return name in project.entities
            case "attr":
                return any(name in values for values in project.variants.attributes.values())
            case "tn":
                return name in project.translations
            case _:
                return True

    def _check_default_step(self, flow: format.Flow, step: format.Step) -> None:
        if not step.is_default:
            return
        references = find_references(step.prompt)
        functions = [f"{prefix}:{name}" for prefix, name, _ in references if prefix in ("fn", "ft")]
        if functions:
            message = f"Default steps cannot reference functions. Found function references: {functions}"
            self._findings.error(step.file, step.prompt_line, message)
        if not functions:
            allowed = ("attr", "entity", "vrbl")
            self._check_references(_Text(step.file, step.prompt_line, step.prompt, allowed, flow))
        unknown = [name for name in step.entities if name not in self._project.entities]
        if unknown:
            message = f"Extracted entities not found: {unknown}. Define them in config/entities.yaml."
            self._findings.error(step.file, 1, message)
        for condition in step.conditions:
            missing = [name for name in condition.required_entities if name not in self._project.entities]
            if missing:
                message = f"Required entities not found: {missing}. Define them in config/entities.yaml."
                self._findings.error(step.file, condition.line, message)
            if condition.child_step and not flow.has_step(condition.child_step):
                message = f"Step '{condition.child_step}' not found. Add it to flow '{flow.name}', or correct the name."
                self._findings.error(step.file, condition.line, message)

    def _check_transitions(self, function: format.ProjectFunction) -> None:
        flow = self._project.flows.get(function.flow or "")
        for goto in function.gotos:
            if goto.kind == "flow" and goto.name not in self._project.flows:
                known = ", ".join(self._project.flows) or "none"
                message = f"conv.goto_flow('{goto.name}') references a flow that does not exist. There is: {known}."
                self._findings.error(function.file, goto.line, message)
            if goto.kind == "step" and flow is not None and not flow.has_step(goto.name):
                message = f"flow.goto_step('{goto.name}') references a step that does not exist in flow '{flow.name}'."
                self._findings.error(function.file, goto.line, message)
        for line, problem in self._returned_transitions(function, flow):
            self._findings.warning(function.file, line, f"{problem} At run time the call stays where it is.")

    def _returned_transitions(
        self, function: format.ProjectFunction, flow: format.Flow | None
    ) -> Iterator[tuple[int, str]]:
        """Yield line and problem of each literal `"transition": {…}` in a returned value that leads nowhere."""
        for returned in function.transitions:
            target = self._project.flows.get(returned.flow) if returned.flow else flow
            if returned.flow and target is None:
                yield returned.line, f"The transition goes to flow '{returned.flow}', which does not exist."
            elif returned.step and target is not None and not target.has_step(returned.step):
                yield returned.line, f"The transition goes to step '{returned.step}', which flow '{target.name}' lacks."
            elif returned.step and target is None and function.kind in ("start", "end"):
                yield returned.line, f"The transition goes to step '{returned.step}' and names no flow."

    def _check_delay_responses(self, function: format.ProjectFunction) -> None:
        for response in function.latency.responses if function.latency else ():
            invalid = [f"{p}:{name}" for p, name, _ in find_references(response.text) if p not in ("vrbl", "tn")]
            if invalid:
                message = f"Invalid references: {invalid} in delay response message '{response.text}'."
                self._findings.error(function.file, function.line, message)

    def _check_filters(self) -> None:
        for rule in self._project.voice.filters:
            if rule.function and rule.function not in self._project.functions:
                message = f"Phrase filter '{rule.name}' calls '{rule.function}', which is not a global function."
                self._findings.error("voice/response_control/phrase_filtering.yaml", 1, message)

    def _check_fillers(self) -> None:
        """Warn of fillers so early that they are heard in nearly every turn."""
        file = "voice/configuration.yaml"
        project = self._project
        fillers = format.filler_phrases(project.voice.fillers, project.experimental, project.languages.default)
        if not project.voice.fillers.phrases:
            file = "agent_settings/experimental_config.json"
        if fillers.phrases and fillers.initial_interval < MIN_FILLER_WAIT:
            message = f"Filler phrases after {fillers.initial_interval:g} s are heard in nearly every turn."
            self._findings.warning(file, 1, f"{message} Wait {MIN_FILLER_WAIT:g} s or longer.")

    def _check_settings(self) -> None:
        file, experimental = "agent_settings/experimental_config.json", self._project.experimental
        steps = [step for flow in self._project.flows.values() for step in flow.steps.values() if step.ignored]
        if steps:
            names = ", ".join(sorted({name for step in steps for name in step.ignored}))
            message = f"These settings of steps have no effect on this server: {names}."
            self._findings.warning(steps[0].file, 1, message)
        if unknown := unknown_sections(experimental):
            self._findings.warning(file, 1, f"Unknown sections: {', '.join(unknown)}.")
        if idle := ignored_settings(experimental):
            self._findings.warning(file, 1, f"These settings have no effect on this server: {', '.join(idle)}.")

    def _check_patterns(self) -> None:
        """Warn of regular expressions whose search may exceed its deadline; such a search finds nothing."""
        voice, entities = self._project.voice, self._project.entities.values()
        places = (
            ("voice/speech_recognition/transcript_corrections.yaml", [e.pattern.pattern for e in voice.corrections]),
            ("voice/response_control/pronunciations.yaml", [e.pattern.pattern for e in voice.pronunciations]),
            ("voice/response_control/phrase_filtering.yaml", [p.pattern for e in voice.filters for p in e.patterns]),
            ("config/entities.yaml", [str(entity.config.get("regular_expression") or "") for entity in entities]),
        )
        for file, patterns in places:
            for pattern in filter(has_nested_repeats, patterns):
                message = f"'{pattern}' repeats a repetition: searching some texts would take very long. Simplify it."
                self._findings.warning(file, 1, message)

    def _check_webchat(self) -> None:
        path = self._project.path
        chat = self._project.chat
        if chat is None:
            return
        parts = {
            "greeting": bool(chat.message),
            "style prompt": bool(chat.style_prompt),
            "safety filters": (path / "chat" / "safety_filters.yaml").exists(),
        }
        missing = [name for name, is_present in parts.items() if not is_present]
        if missing and len(missing) < len(parts):
            message = f"Webchat config resources must all be present together. Missing: {missing}"
            self._findings.warning("chat/configuration.yaml", 1, message)

    def _check_topic_contents(self) -> None:
        for topic in self._project.topics:
            names = [name for prefix, name, _ in find_references(topic.content) if prefix in ("fn", "ft")]
            if names:
                message = f"Function references in 'content' have no effect: {names}. Move them to 'actions'."
                self._findings.warning(topic.file, 1, message)

    def _check_unused_functions(self) -> None:
        """Warn of functions that no prompt names and no code mentions: the model never sees them."""
        sources = {
            f.file: read_text(self._project.path, f.file, Findings()) or "" for f in self._project.all_functions()
        }
        named = {name for text in self._all_prompts() for prefix, name, _ in find_references(text)}
        named |= {rule.function for rule in self._project.voice.filters if rule.function}
        for function in self._project.all_functions():
            prefix = {"global": "fn", "flow": "ft"}.get(function.kind)
            if prefix is None or function.name in named:
                continue
            word = re.compile(rf"\b{re.escape(function.name)}\b")
            if not any(word.search(text) for file, text in sources.items() if file != function.file):
                message = f"No prompt references {{{{{prefix}:{function.name}}}}}: the model will never call it."
                self._findings.warning(function.file, function.line, message)

    def _all_prompts(self) -> Iterator[str]:
        yield self._project.rules
        yield from (guardrail.action for guardrail in self._project.guardrails)
        for topic in self._project.topics:
            yield topic.actions
        for flow in self._project.flows.values():
            for step in flow.steps.values():
                yield step.prompt


def _remedy(prefix: str, name: str, allowed: bool) -> str:
    if not allowed:
        return f"'{prefix}' cannot be used in this text."
    places = {
        "fn": f"There is no functions/{name}.py.",
        "ft": f"The flow has no functions/{name}.py.",
        "ho": "Define the handoff in config/handoffs.yaml.",
        "twilio_sms": "Define the template in config/sms_templates.yaml.",
        "entity": "Define the entity in config/entities.yaml.",
        "attr": "Define the attribute in config/variant_attributes.yaml.",
        "tn": "Define the key in config/translations.yaml.",
    }
    return places.get(prefix, f"There is no kind of reference '{clean_name(prefix)}'.")


_ALL = frozenset({"*"})
_OVERRIDES = ("channel_overrides", "flow_overrides", "language_overrides", "steps", "variant_overrides")
"""Keys under which a section has further settings by channel, flow, language, step or variant."""
_HONOURED: Mapping[str, frozenset[str]] = {
    "asr": frozenset({"initial_timeout", "hard_timeout", "eager_final"}),
    "eot": frozenset({"provider", "threshold", "timeout_ms"}),
    "background_track": _ALL,
    "handoff_api": frozenset({"state_keys", "aliases", "shared_id_state_key"}),
    "smart_vad": frozenset({"is_enabled", "default_function_wait", "gated_functions", "nongated_functions"}),
    "vad": frozenset({"vad_end"}),
    "barge_in": frozenset({"is_enabled", "enable_on_start_turn", "experimental_config"}),
    "dtmf": frozenset({"global", "disable_speech", "first_digit_timeout"}),
    "conversation_control": frozenset({"max_silence_count", "hangup_utterance", "channel_overrides"}),
    "filler_utterances": _ALL,
    "prompts": frozenset(
        {
            "silence",
            "step_header",
            "step_footer",
            "context_information_precursor",
            "context_information",
            "function_not_found",
            "language_switching_instructions",
            "non_english_rag",
            "non_english_system",
            "webchat_decorator",
            "voice_decorator",
            "sms_decorator",
            "whatsapp_decorator",
        }
    ),
    "ragdoll": frozenset(
        {
            "threshold",
            "top_k",
            "in_flow_threshold",
            "qa_metric_threshold",
            "history_len",
            "previous_user_inputs_len",
            "channel_topic_exclusions",
            "qa_metric_exclusions",
        }
    ),
    "llm": frozenset({"provider_model_id", "inference_parameters", "include_kb_functions_in_flows"}),
    "memory": frozenset({"identifier_source", "repeat_caller"}),
}
"""Section of the experimental configuration -> its keys that have an effect."""
KNOWN_SECTIONS = frozenset(_HONOURED) | {
    "ab", "agentic_dial", "audio_enhancement", "backchannelling", "csat_sms", "email",
    "language_switching", "polyff", "polywhirl_rollout", "realtime", "tts_postprocessing", "verified_context",
    "webchat", "webhooks",
}  # fmt: skip
"""All sections that the platform has, with and without an effect."""


def ignored_settings(experimental: format.ExperimentalSettings) -> list[str]:
    """Return the dotted names of ignored settings, sorted; a section that is ignored as a whole is named alone."""
    return sorted(set(_ignored_names(experimental)))


def unknown_sections(experimental: format.ExperimentalSettings) -> list[str]:
    return sorted(str(name) for name in experimental.data if name not in KNOWN_SECTIONS)


def _ignored_names(experimental: format.ExperimentalSettings) -> Iterator[str]:
    for name in experimental.data:
        honoured = _HONOURED.get(name)
        if honoured is None and name in KNOWN_SECTIONS:
            yield name
        elif honoured is not None and honoured is not _ALL:
            yield from (f"{name}.{key}" for key in _keys(experimental.section(name)) if key not in honoured)


def _keys(section: JsonObject) -> Iterator[str]:
    """Yield the keys of a section and of its overrides."""
    for key, value in section.items():
        if key not in _OVERRIDES:
            yield str(key)
        elif isinstance(value, dict):
            for inner in value.values():
                yield from _keys(inner if isinstance(inner, dict) else {})
