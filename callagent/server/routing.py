"""Which project answers which number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from callagent.agents import AgentProject
from callagent.agents.flows import OptOuts, Outside
from callagent.config import Config, Number
from callagent.models import LanguageModel
from callagent.server.projects import flow_settings, open_project


@dataclass(frozen=True, slots=True)
class Route:
    project: AgentProject
    environment: str
    fallback: str = ""
    """Name of a target for calls that the agent cannot go on with."""


class Router:
    """The projects of a server, opened once each and environment."""

    def __init__(
        self, numbers: Sequence[Number], projects: Mapping[tuple[Path, str], AgentProject], outside: Outside
    ) -> None:
        self._numbers = numbers
        self._projects = projects
        self.outside = outside
        """Where outside programs reach the calls of these projects."""

    @classmethod
    async def open(cls, config: Config, project: Path, model: LanguageModel, stack: AsyncExitStack) -> Router:
        """Load what the settings name, else `project` for every number. Raises `ProjectError`."""
        numbers = config.numbers or (Number(project=str(project)),)
        kept = Path(config.records.memory) / "opted_out" if config.records.memory else None
        outside = Outside(opt_outs=OptOuts(kept))
        projects: dict[tuple[Path, str], AgentProject] = {}
        for number in numbers:
            key = _key(number)
            if key not in projects:
                settings = flow_settings(config, number.environment, outside)
                projects[key] = await open_project(Path(number.project), model, config, settings)
                stack.push_async_callback(projects[key].close)
        return cls(numbers, projects, outside)

    def route(self, callee: str | None) -> Route | None:
        """The first number of the settings that matches; None: nobody answers this number."""
        for number in self._numbers:
            if number.matches(callee or ""):
                project = self._projects[_key(number)]
                return Route(project, number.environment, number.fallback)
        return None

    def project(self, name: str, environment: str) -> AgentProject | None:
        """The project of that name, opened in that environment; None: this server has it no more."""
        found = (one for key, one in self._projects.items() if (one.name, key[1]) == (name, environment))
        return next(found, None)

    def environment(self, name: str) -> str:
        """In which the project of that name was opened."""
        return next((key[1] for key, project in self._projects.items() if project.name == name), "sandbox")

    def projects(self) -> Sequence[AgentProject]:
        return list(self._projects.values())


def _key(number: Number) -> tuple[Path, str]:
    return Path(number.project).resolve(), number.environment
