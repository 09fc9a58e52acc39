from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from callagent.agents.cx import CxProject
from callagent.config import Config, Number, Target
from callagent.errors import ProjectError, UserError
from callagent.models import open_model
from callagent.server.projects import Route, Router
from callagent.server.server import Server
from tests.agents.cx.format.test_deployments import APP, deployed

PROJECTS = Path(__file__).parents[1] / "projects"
MILL, FERRY = PROJECTS / "mill", PROJECTS / "ferry"


async def opened(stack: AsyncExitStack, *numbers: Number, project: Path = MILL) -> Router:
    return await Router.open(Config(numbers=numbers), project, open_model("rules"), stack)


async def test_without_numbers_one_project_answers_everything() -> None:
    async with AsyncExitStack() as stack:
        router = await opened(stack)
        for callee in ("agent", "+15550199", "", None):
            route = router.route(callee)
            assert route
            assert (route.project.name, route.environment) == (router.projects()[0].name, "sandbox")


async def test_the_first_number_that_matches_decides() -> None:
    numbers = (
        Number(number="+15550100", project=str(MILL), environment="live"),
        Number(number="+1555*", project=str(FERRY)),
        Number(number="+15550*", project=str(MILL)),
    )
    async with AsyncExitStack() as stack:
        router = await opened(stack, *numbers)
        mill, ferry = router.route("+15550100"), router.route("+15550101")
        assert mill
        assert ferry
        assert (mill.environment, ferry.environment) == ("live", "sandbox")
        assert mill.project is not ferry.project
        assert router.route("+4930123") is None
        assert router.route(None) is None


async def test_a_project_is_opened_once_for_each_environment() -> None:
    numbers = (
        Number(number="1", project=str(MILL)),
        Number(number="2", project=str(MILL / ".." / "mill")),
        Number(number="3", project=str(MILL), environment="live"),
    )
    async with AsyncExitStack() as stack:
        router = await opened(stack, *numbers)
        assert len(router.projects()) == 2
        one, two, three = (router.route(callee) for callee in "123")
        assert one
        assert two
        assert three
        assert one.project is two.project
        assert one.project is not three.project


async def test_a_project_has_the_environment_in_which_it_was_opened_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (Number(number="1", project=str(MILL)), Number(number="2", project=str(MILL), environment="live"))
    begun: list[Route] = []
    monkeypatch.setattr(Server, "_begin", lambda self, leg, route, watcher: begun.append(route))
    async with AsyncExitStack() as stack:
        server = Server.__new__(Server)
        server._router = await opened(stack, *numbers)
        projects = server._router.projects()
        for project in projects:
            server.hold_session(None, project, lambda event: None)  # type: ignore[arg-type]
        assert [each.name for each in projects] == [projects[0].name] * 2
        assert [(each.project, each.environment) for each in begun] == [(projects[0], "sandbox"), (projects[1], "live")]


async def test_a_deployment_has_the_environment_of_its_app(tmp_path: Path) -> None:
    app = deployed(tmp_path, appVersion=f"{APP}/versions/v1").parent.parent
    numbers = (Number(number="1", project=str(app)), Number(number="2", project=str(app), environment="live"))
    async with AsyncExitStack() as stack:
        router = await opened(stack, *numbers)
        for project, environment in zip(router.projects(), ("sandbox", "live"), strict=True):
            assert isinstance(project, CxProject)
            deployment = await project.deployed("phone")
            assert deployment is not project
            assert router.environment(deployment) == environment


async def test_a_project_that_cannot_be_opened_stops_the_server_and_frees_the_others(tmp_path: Path) -> None:
    (tmp_path / "project.yaml").write_text("a: [")
    async with AsyncExitStack() as stack:
        with pytest.raises(ProjectError, match=r"project\.yaml"):
            await opened(stack, Number(number="1", project=str(MILL)), Number(number="2", project=str(tmp_path)))
    async with AsyncExitStack() as stack:
        with pytest.raises(UserError, match="is not a folder"):
            await opened(stack, project=tmp_path / "nowhere")


async def test_a_number_has_a_fallback_that_is_a_target() -> None:
    number = Number(number="1", project=str(MILL), fallback="desk")
    desk = Target(name="Desk", uri="sip:desk@192.0.2.1")
    async with AsyncExitStack() as stack:
        router = await Router.open(Config(numbers=(number,), targets=(desk,)), MILL, open_model("rules"), stack)
        route = router.route("1")
        assert route
        assert route.fallback == "desk"
    with pytest.raises(ValueError, match=r"numbers.fallback 'desk' is not a target"):
        Config(numbers=(number,))
