"""A flow project and its flows, how they are read from the project folder, and the graph of its steps.

Reading collects all errors of the project and runs none of its code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from callagent.agents.flows.format import agent_settings, configuration
from callagent.agents.flows.format import voice as voice_format
from callagent.agents.flows.format.experimental import ExperimentalSettings
from callagent.agents.flows.format.functions import ProjectFunction, read_function
from callagent.agents.flows.format.steps_and_topics import Step, Topic, load_step, load_topic
from callagent.agents.kernel import Document, Findings, Reader, clean_name, read_text, read_yaml
from callagent.agents.protocol import GraphEdge, GraphFlow, GraphStep, ProjectGraph
from callagent.json_values import JsonValue


@dataclass(frozen=True, slots=True)
class Project:
    path: Path
    name: str
    account_id: str = ""
    project_id: str = ""
    identity: str = ""
    rules: str = ""
    guardrails: tuple[agent_settings.Guardrail, ...] = ()
    safety: Mapping[str, agent_settings.SafetyFilters] = field(default_factory=dict)
    """Channel (`voice`, `webchat`) -> its filters; the empty key has those of the agent."""
    languages: agent_settings.Languages = field(default_factory=agent_settings.Languages)
    experimental: ExperimentalSettings = field(default_factory=ExperimentalSettings)
    voice: voice_format.VoiceSettings = field(default_factory=voice_format.VoiceSettings)
    chat: voice_format.Greeting | None = None
    """Greeting of the channel `webchat`; None: the project has no `chat/`."""
    entities: Mapping[str, configuration.Entity] = field(default_factory=dict)
    handoffs: Mapping[str, configuration.HandoffTarget] = field(default_factory=dict)
    sms_templates: Mapping[str, configuration.SmsTemplate] = field(default_factory=dict)
    apis: Mapping[str, configuration.ApiIntegration] = field(default_factory=dict)
    mcp: tuple[configuration.McpConfig, ...] = ()
    remote: Mapping[str, ProjectFunction] = field(default_factory=dict)
    """Functions of its MCP servers by the name that the model sees; empty until the servers have been asked."""
    variants: configuration.Variants = field(default_factory=configuration.Variants)
    translations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topics: tuple[Topic, ...] = ()
    functions: Mapping[str, ProjectFunction] = field(default_factory=dict)
    """Global functions, without start and end."""
    start_function: ProjectFunction | None = None
    end_function: ProjectFunction | None = None
    flows: Mapping[str, Flow] = field(default_factory=dict)
    """By display name."""

    def safety_of(self, channel: str) -> agent_settings.SafetyFilters | None:
        """Return the safety filters of a channel, or those of the agent where the channel has none of its own."""
        return self.safety.get(channel) or self.safety.get("")

    def step(self, flow: str | None, step: str | None) -> Step | None:
        """Return a step that asks the model; None outside flows and on a function step."""
        found = self.flows.get(flow or "")
        return found.steps.get(step or "") if found else None

    def function_step(self, flow: str | None, step: str | None) -> ProjectFunction | None:
        found = self.flows.get(flow or "")
        return found.function_steps.get(step or "") if found else None

    def all_functions(self) -> Iterator[ProjectFunction]:
        """Yield the functions of all function files."""
        yield from (each for each in (self.start_function, self.end_function) if each is not None)
        yield from self.functions.values()
        for flow in self.flows.values():
            yield from flow.functions.values()
            yield from flow.function_steps.values()


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    folder: str
    description: str
    start_step: str
    steps: Mapping[str, Step] = field(default_factory=dict)
    function_steps: Mapping[str, ProjectFunction] = field(default_factory=dict)
    functions: Mapping[str, ProjectFunction] = field(default_factory=dict)

    def has_step(self, name: str | None) -> bool:
        return name in self.steps or name in self.function_steps


_PARTS = ("project.yaml", "flows", "functions", "agent_settings", "topics")
"""Files and folders of which a flow project has at least one."""


def is_flow_project(path: Path) -> bool:
    """Return whether a folder looks like a flow project."""
    return any((path / name).exists() for name in _PARTS)


def load_project(path: Path) -> tuple[Project, Findings]:
    """Read the project in `path`. It may be used only if the findings hold no errors."""
    findings = Findings()
    if not path.is_dir():
        findings.error(".", 1, f"There is no folder {path}. Give the path of a project.")
    elif not is_flow_project(path):
        findings.error(".", 1, f"Not a flow project: it has none of {', '.join(_PARTS)}.")
    return _Loader(path, findings).load(), findings


class _Loader:
    def __init__(self, path: Path, findings: Findings) -> None:
        self._path = path
        self._findings = findings

    def load(self) -> Project:
        self._check_documents()
        identity = self._reader("project.yaml")
        languages = self._languages()
        variants = configuration.load_variants(self._reader("config/variant_attributes.yaml"))
        functions = self._functions("functions", "global", None)
        # Taken out of the global functions, because the model must not be offered them.
        start, end = (functions.pop(name, None) for name in ("start_function", "end_function"))
        chat = "chat/configuration.yaml"
        return Project(
            path=self._path,
            name=identity.text("project_name") or identity.text("project_id") or self._path.resolve().name,
            account_id=str(identity.raw("account_id") or ""),
            project_id=str(identity.raw("project_id") or ""),
            identity=self._identity(),
            rules=self._text("agent_settings/rules.txt"),
            guardrails=self._guardrails(),
            safety=self._safety(),
            languages=languages,
            experimental=self._experimental(),
            voice=self._voice(),
            # None rather than an empty greeting: a project without `chat/` uses that of `voice/` on all channels.
            chat=voice_format.load_greeting(self._reader(chat)) if (self._path / chat).exists() else None,
            entities=configuration.load_entities(self._reader("config/entities.yaml")),
            handoffs=configuration.load_handoffs(self._reader("config/handoffs.yaml")),
            sms_templates=configuration.load_sms_templates(self._reader("config/sms_templates.yaml")),
            apis=configuration.load_apis(self._reader("config/api_integrations.yaml")),
            mcp=configuration.load_mcp(self._reader("config/mcp.yaml")),
            variants=variants,
            translations=configuration.load_translations(self._reader("config/translations.yaml"), languages.all),
            topics=self._topics(tuple(variants.attributes)),
            functions=functions,
            start_function=start,
            end_function=end,
            flows={flow.name: flow for flow in self._flows()},
        )

    def _reader(self, file: str) -> Reader:
        """Return the top-level map of a file; an empty one where there is no such file."""
        # An invalid file is read as an empty one: its error is in the findings, and reading goes on to find all others.
        document = read_yaml(self._path, file, self._findings)
        return (document or Document(file, None, {}, self._findings)).root()

    def _text(self, file: str) -> str:
        return (read_text(self._path, file, self._findings) or "").strip()

    def _files(self, folder: str, pattern: str) -> Iterator[str]:
        for path in sorted((self._path / folder).glob(pattern)):
            if path.is_file() and not path.name.startswith((".", "__")):
                yield path.relative_to(self._path).as_posix()

    def _check_documents(self) -> None:
        for file, check in CHECKS.items():
            if (self._path / file).exists():
                check(self._reader(file))

    def _languages(self) -> agent_settings.Languages:
        file = "agent_settings/languages.yaml"
        return (
            agent_settings.load_languages(self._reader(file))
            if (self._path / file).exists()
            else agent_settings.Languages()
        )

    def _guardrails(self) -> tuple[agent_settings.Guardrail, ...]:
        file = "agent_settings/guardrails.yaml"
        return agent_settings.load_guardrails(self._reader(file)) if (self._path / file).exists() else ()

    def _identity(self) -> str:
        # persona.txt replaces personality.yaml and role.yaml, which older projects have.
        persona = self._text("agent_settings/persona.txt")
        if persona:
            return persona
        readers = {name: self._reader(f"agent_settings/{name}.yaml") for name in ("personality", "role")}
        return (
            agent_settings.legacy_identity(readers["personality"], readers["role"])
            if agent_settings.has_identity(readers)
            else ""
        )

    def _safety(self) -> dict[str, agent_settings.SafetyFilters]:
        """Return safety filters by channel; the key of the agent's own is empty."""
        places = {"": "agent_settings", "voice": "voice", "webchat": "chat"}
        return {
            channel: agent_settings.load_safety_filters(
                self._reader(f"{folder}/safety_filters.yaml"), of_channel=bool(channel)
            )
            for channel, folder in places.items()
            if (self._path / folder / "safety_filters.yaml").exists()
        }

    def _experimental(self) -> ExperimentalSettings:
        file = "agent_settings/experimental_config.json"
        text = self._text(file)
        if not text:
            return ExperimentalSettings()
        try:
            data: JsonValue = json.loads(text)
        except json.JSONDecodeError as error:
            self._findings.error(file, error.lineno, f"Not valid JSON: {error.msg}.")
            return ExperimentalSettings()
        if not isinstance(data, dict):
            self._findings.error(file, 1, "The file should hold one JSON object.")
            return ExperimentalSettings()
        return ExperimentalSettings(data)

    def _voice(self) -> voice_format.VoiceSettings:
        recognition, response = "voice/speech_recognition", "voice/response_control"
        # Older projects have `speech_recognition/` at the top level.
        keyphrases = f"{recognition}/keyphrase_boosting.yaml"
        if not (self._path / keyphrases).exists():
            keyphrases = "speech_recognition/keyphrase_boosting.yaml"
        file = "voice/configuration.yaml"
        return voice_format.VoiceSettings(
            greeting=voice_format.load_greeting(self._reader(file))
            if (self._path / file).exists()
            else voice_format.Greeting(),
            asr=voice_format.load_asr_settings(self._reader(f"{recognition}/asr_settings.yaml")),
            keyphrases=voice_format.load_keyphrases(self._reader(keyphrases)),
            corrections=voice_format.load_corrections(self._reader(f"{recognition}/transcript_corrections.yaml")),
            pronunciations=voice_format.load_pronunciations(self._reader(f"{response}/pronunciations.yaml")),
            filters=voice_format.load_filters(self._reader(f"{response}/phrase_filtering.yaml")),
            fillers=voice_format.load_filler_phrases(self._reader(file)),
            background=voice_format.load_background(self._reader(file)),
        )

    def _topics(self, variants: tuple[str, ...]) -> tuple[Topic, ...]:
        folders = {clean_name(name): name for name in variants}
        found: dict[str, Topic] = {}
        for file in (*self._files("topics", "**/*.yaml"), *self._files("child_topics", "*/*.yaml")):
            # The folder of a variant's topics has the cleaned name of the variant.
            variant = folders.get(file.split("/")[1]) if file.startswith("child_topics/") else None
            if file.startswith("child_topics/") and variant is None:
                self._findings.error(
                    file, 1, f"The folder of a child topic is the cleaned name of a variant: {sorted(folders)}."
                )
                continue
            topic = load_topic(self._reader(file), variant)
            if topic is None:
                continue
            if topic.name in found:
                message = f"Topic '{topic.name}' is already defined in {found[topic.name].file}. Rename one of the two."
                self._findings.error(file, 1, message)
            found[topic.name] = topic
        return tuple(found.values())

    def _functions(self, folder: str, kind: str, flow: str | None) -> dict[str, ProjectFunction]:
        found = {}
        for file in self._files(folder, "*.py"):
            name = Path(file).stem
            # Only at the top level: in a flow, a function of such a name is an ordinary one.
            special = {"start_function": "start", "end_function": "end"}.get(name) if kind == "global" else None
            function = read_function(self._path, file, special or kind, flow, self._findings)
            if function is not None:
                found[name] = function
        return found

    def _flows(self) -> Iterator[Flow]:
        for file in self._files("flows", "*/flow_config.yaml"):
            yield self._flow(file)
        for folder in sorted((self._path / "flows").glob("*/")):
            if (
                folder.is_dir()
                and not folder.name.startswith((".", "_"))
                and not (folder / "flow_config.yaml").exists()
            ):
                problem = "Can't find flow_id for transition function. The flow has no flow_config.yaml."
                message = f"{problem} Add the file, or remove the folder."
                self._findings.error(f"flows/{folder.name}", 1, message)

    def _flow(self, file: str) -> Flow:
        reader = self._reader(file)
        folder = file.split("/")[1]
        name = reader.required_text("name")
        # Imports and references name a flow by its folder, moves by its display name: the two must match.
        if name and clean_name(name) != folder:
            message = f"Flow folder name does not match flow name in config. {folder} != {clean_name(name)}"
            reader.error(f"{message}. Rename the folder or the flow.", "name")
        if not reader.text("description"):
            reader.error("Flow description cannot be empty. Say what the flow is for.", "description")
        flow = Flow(
            # A flow without a name is an error already; the folder's name keeps its other findings readable.
            name=name or folder,
            folder=folder,
            description=reader.text("description"),
            start_step=reader.text("start_step"),
            steps=self._steps(folder),
            function_steps=self._functions(f"flows/{folder}/function_steps", "step", name or folder),
            functions=self._functions(f"flows/{folder}/functions", "flow", name or folder),
        )
        if not flow.start_step:
            reader.error("Start step cannot be empty. Name the step that the flow begins with.", "start_step")
        elif not flow.has_step(flow.start_step):
            known = ", ".join((*flow.steps, *flow.function_steps)) or "none"
            reader.error(f"Start step '{flow.start_step}' not found. The flow has: {known}.", "start_step")
        return flow

    def _steps(self, folder: str) -> dict[str, Step]:
        steps: dict[str, Step] = {}
        for file in self._files(f"flows/{folder}/steps", "*.yaml"):
            reader = self._reader(file)
            step = load_step(reader)
            if step.name and clean_name(step.name) != Path(file).stem:
                reader.warning(f"The file of step '{step.name}' should be called {clean_name(step.name)}.yaml.", "name")
            if step.name in steps:
                message = f"Step '{step.name}' is already defined in {steps[step.name].file}. Rename one of the two."
                reader.error(message, "name")
            steps[step.name] = step
        return steps


PRESETS = ("office-ambiance", "restaurant-ambiance", "whitenoise-subtle")
"""Background sounds that the platform offers."""


def check_voice_extras(root: Reader) -> None:
    """Check filler phrases and background sound of `voice/configuration.yaml`, where unknown keys are errors."""
    fillers, ambience = root.map("filler_phrases"), root.map("background_ambience")
    keys = ("enabled", "phrases", "randomize", "initial_interval_seconds", "interval_seconds")
    _check_keys(fillers, "filler_phrases", keys)
    if fillers.flag("enabled") and not fillers.texts("phrases"):
        fillers.error("'filler_phrases' is enabled and needs at least one phrase.", "enabled")
    for key, minimum in (("initial_interval_seconds", 0.5), ("interval_seconds", 1.0)):
        value = fillers.number(key)
        if value is not None and value < minimum:
            fillers.error(f"'{key}' should be at least {minimum:g}.", key)
    _check_keys(ambience, "background_ambience", ("enabled", "preset", "loudness"))
    loudness = ambience.number("loudness")
    if loudness is not None and not -70 <= loudness <= -20:
        ambience.error("'loudness' should be between -70 and -20.", "loudness")
    preset = ambience.text("preset")
    if preset and preset not in PRESETS:
        known = ", ".join(PRESETS)
        message = f"'preset' {preset} is none of the platform's: {known}. It needs a sound of that name on the server."
        ambience.warning(message, "preset")


CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "config/mcp.yaml": configuration.check_mcp,
    "voice/configuration.yaml": check_voice_extras,
}
"""File -> a check that reports what reading it would accept."""


def _check_keys(reader: Reader, section: str, known: tuple[str, ...]) -> None:
    for key in reader.names():
        if key not in known:
            reader.error(f"'{section}' has no key '{key}'. It has: {', '.join(known)}.", key)


_FUNCTION_REFERENCE = re.compile(r"\{\{\s*(ft|fn):\s*(\w+)\s*\}\}")


def project_graph(project: Project) -> ProjectGraph:
    """Build the graph; each edge appears once, in the order of the files."""
    starts = {flow.name: _step_id(flow.name, flow.start_step) for flow in project.flows.values()}
    # A dict keeps the order and drops the duplicates of a function that two prompts name.
    edges: dict[GraphEdge, None] = {}
    if project.start_function:
        edges |= dict.fromkeys(_goto_edges(project.start_function, "", None, starts))
    for flow in project.flows.values():
        edges |= dict.fromkeys(_flow_edges(flow, project.functions, starts))
    return ProjectGraph(tuple(_graph_flow(each) for each in project.flows.values()), tuple(edges))


def _graph_flow(flow: Flow) -> GraphFlow:
    steps = [GraphStep(_step_id(flow.name, name), name, "step") for name in flow.steps]
    steps += [GraphStep(_step_id(flow.name, name), name, "function") for name in flow.function_steps]
    return GraphFlow(flow.name, _step_id(flow.name, flow.start_step), tuple(steps))


def _flow_edges(flow: Flow, functions: Mapping[str, ProjectFunction], starts: dict[str, str]) -> Iterator[GraphEdge]:
    for name, step in flow.steps.items():
        here = _step_id(flow.name, name)
        for condition in step.conditions:
            if condition.child_step:
                yield GraphEdge(here, _step_id(flow.name, condition.child_step), condition.name)
        for prefix, called in _FUNCTION_REFERENCE.findall(step.prompt):
            # A step leads to all steps to which the functions that its prompt names move. As for the model, `ft` means
            # a function of the flow and `fn` one of the project; where that one is missing, the other is taken.
            places = (flow.functions, functions) if prefix == "ft" else (functions, flow.functions)
            if function := places[0].get(called) or places[1].get(called):
                yield from _goto_edges(function, here, flow, starts)
    for name, function in flow.function_steps.items():
        yield from _goto_edges(function, _step_id(flow.name, name), flow, starts)


def _goto_edges(
    function: ProjectFunction, source: str, flow: Flow | None, starts: dict[str, str]
) -> Iterator[GraphEdge]:
    for goto in function.gotos:
        # A global function may name steps of several flows.
        if goto.kind == "step" and flow is not None and flow.has_step(goto.name):
            yield GraphEdge(source, _step_id(flow.name, goto.name), function.name)
        elif goto.kind == "flow" and goto.name in starts:
            yield GraphEdge(source, starts[goto.name], function.name)


def _step_id(flow: str, step: str) -> str:
    return f"{flow}/{step}"
