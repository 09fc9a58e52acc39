"""A loaded flow project: makes one agent per call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from callagent.agents.action import Agent, MetricWriter
from callagent.agents.flows.conversation import Conversation
from callagent.agents.flows.dialogue import Dialogue
from callagent.agents.flows.engine import DEFAULT_HANGUP_UTTERANCE, FlowAgent
from callagent.agents.flows.load import load_project
from callagent.agents.flows.project import Project
from callagent.agents.flows.real_time import RealTimeConfiguration
from callagent.agents.flows.references import Scope, resolve_text
from callagent.agents.flows.retrieval import TopicIndex
from callagent.agents.flows.runner import FunctionRunner
from callagent.agents.flows.settings import FlowSettings
from callagent.agents.flows.voice import pronounce
from callagent.call_info import CallInfo
from callagent.errors import ProjectError
from callagent.models.protocol import LanguageModel, for_call
from callagent.workers.protocol import Plain, ProjectRuntime, WorkerPool

RUNTIME = "callagent.agents.flows.runtime:FlowRuntime"


class FlowProject:
    """Implements `agents.action.AgentProject`. It closes the pool, which serves it alone; the model is shared."""

    def __init__(self, project: Project, model: LanguageModel, pool: WorkerPool, settings: FlowSettings) -> None:
        self.name = project.name
        self.project = project
        self._model = model
        self._pool = pool
        self._settings = settings
        self._index = TopicIndex(project.topics)
        self._real_time = RealTimeConfiguration(project.path)

    def phrases(self) -> Sequence[str]:
        project = self.project
        scope = Scope(
            variants=project.variants,
            variant=project.variants.default,
            translations=project.translations,
            language=project.languages.default,
        )
        texts = [project.voice.greeting.disclaimer, project.voice.greeting.message, self._settings.fallback_utterance]
        texts.append(
            project.experimental.by_language(
                "conversation_control", "hangup_utterance", scope.language, DEFAULT_HANGUP_UTTERANCE
            )
        )
        for function in project.all_functions():
            texts += [response.text for response in (function.latency.responses if function.latency else ())]
        resolved = dict.fromkeys(resolve_text(text, scope) for text in texts if text)
        # What still holds a variable is only known in the call.
        return [text for text in resolved if "$" not in text and "{{" not in text]

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> Agent:
        lease = await self._pool.lease(self._context())
        model = for_call(self._model)
        conversation = Conversation.begin(info, self.project, self._settings, write_metric)
        runner = FunctionRunner(lease, conversation, model, self._real_time)
        return FlowAgent(Dialogue(conversation, runner, model, self._index))

    def pronounce(self, text: str, language: str | None) -> str:
        """The text as the voice should read it; transcript and history keep it as it is."""
        return pronounce(self.project.voice.pronunciations, text, language)

    async def close(self) -> None:
        await self._pool.close()

    def _context(self) -> Plain:
        settings = self._settings
        return {
            "account_id": self.project.account_id,
            "project_id": self.project.project_id,
            "now": settings.pinned.isoformat() if settings.pinned else None,
            "secrets_dir": settings.secrets_dir,
        }


def project_runtime(path: Path) -> ProjectRuntime:
    """What a worker pool for the project in `path` loads."""
    return ProjectRuntime(RUNTIME, path)


def load_flow_project(
    path: Path, model: LanguageModel, pool: WorkerPool, settings: FlowSettings | None = None
) -> FlowProject:
    """Raises `ProjectError` listing everything that is wrong with the project."""
    project, findings = load_project(path)
    errors = findings.report().errors
    if errors:
        listed = "\n".join(f"  {error}" for error in errors)
        raise ProjectError(f"The project in {path} cannot be loaded:\n{listed}")
    settings = settings or FlowSettings()
    if settings.variant is not None and settings.variant not in project.variants.attributes:
        known = ", ".join(project.variants.attributes) or "none"
        raise ProjectError(f"There is no variant '{settings.variant}'. The project has: {known}.")
    return FlowProject(project, model, pool, settings)
