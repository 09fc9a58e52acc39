from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from callagent.agents.flows import FlowProject
from callagent.config import Config, FunctionGemmaSettings, ModelFallback, ModelSection, load_config
from callagent.errors import ConfigError, ProjectError, UserError
from callagent.models import FailoverModel, NamedModels, open_model
from callagent.models.rules import RulesModel
from callagent.server.projects import check, flow_settings, open_language_model, open_project
from tests.agents.flows.support import call_info, function, write_project

MILL = Path(__file__).parents[1] / "projects" / "mill"


async def opened(path: Path) -> str:
    config = Config()
    project = await open_project(path, open_model("rules"), config, flow_settings(config, "sandbox"))
    try:
        return project.name
    finally:
        await project.close()


async def test_a_sound_project_opens() -> None:
    assert await opened(MILL)


async def test_what_is_no_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        await opened(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no agent project"):
        await opened(tmp_path)


async def test_mistakes_are_told_with_file_and_line(tmp_path: Path) -> None:
    project = Path(shutil.copytree(MILL, tmp_path / "mill"))
    (project / "functions" / "weigh.py").write_text("def weigh(conv:\n")
    with pytest.raises(ProjectError, match=r"functions/weigh\.py:1: Syntax error"):
        await opened(project)


async def test_the_python_of_a_tree_is_imported_before_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "root_agent.yaml").write_text(
        f"name: a\ninstruction: x\ntools:\n  - name: {tmp_path.name}.tools.weigh\n"
    )
    with pytest.raises(ProjectError, match=r"root_agent\.yaml:4: .*cannot be imported"):
        await opened(tmp_path)


async def test_an_app_is_served_from_its_zip(tmp_path: Path) -> None:
    app = shutil.make_archive(str(tmp_path / "desk"), "zip", MILL.parent / "cx_desk")
    assert await opened(Path(app)) == "City Utilities"


@pytest.mark.parametrize("name", ["gpt", "openai", "openai/", "script:", "rules/x", ""])
def test_a_model_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown model"):
        open_language_model(Config(model=ModelSection(name=name)))


def test_openai_itself_wants_a_key_and_a_server_of_ones_own_does_not() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        open_language_model(Config(model=ModelSection(name="openai/gpt-4.1")))
    local = ModelSection(name="openai/qwen", base_url="http://127.0.0.1:8000/v1")
    assert open_language_model(Config(model=local))


def test_models_that_are_asked_where_the_first_fails() -> None:
    spare = ModelFallback(name="openai/qwen", base_url="http://127.0.0.1:8000/v1")
    with pytest.raises(ConfigError, match=r"'openai/gpt-4\.1' needs a key"):
        open_language_model(Config(model=ModelSection(name="openai/gpt-4.1", fallbacks=(spare,))))
    section = ModelSection(name="openai/gpt-4.1", api_key="secret", fallbacks=(spare, ModelFallback(name="rules")))
    model = open_language_model(Config(model=section))
    assert isinstance(model, FailoverModel)
    assert [(member.name, member.embedded) for member in model.lineup.members] == [
        ("openai/gpt-4.1", False),
        ("openai/qwen", False),
        ("rules", True),
    ]


def test_check_tells_of_functions_that_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Path(shutil.copytree(MILL, tmp_path / "mill"))
    with (project / "functions" / "weigh.py").open("a") as file:
        file.write("import a_module_that_nobody_has\n")
    assert check(project, as_json=True) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning["file"] == "functions/weigh.py"
    assert "a_module_that_nobody_has" in warning["message"]
    assert check(project, as_json=False) == 0
    assert capsys.readouterr().out.endswith("0 errors, 1 warnings\n")


def test_each_provider_has_its_own_key_and_gets_no_other() -> None:
    keys = {"OPENAI_API_KEY": "for-openai", "GOOGLE_API_KEY": "for-speech", "GEMINI_API_KEY": "for-gemini"}
    config = load_config(None, keys | {"CALLAGENT_MODEL__NAME": "gemini/flash"})
    assert open_language_model(config)._settings.api_key == "for-gemini"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="'anthropic/x' needs a key: set ANTHROPIC_API_KEY"):
        open_language_model(load_config(None, keys | {"CALLAGENT_MODEL__NAME": "anthropic/x"}))


def test_where_functiongemma_calls_nothing_the_configured_fallback_answers() -> None:
    def fallback(name: str) -> object:
        section = ModelSection(name="functiongemma/llamacpp", functiongemma=FunctionGemmaSettings(fallback=name))
        return open_language_model(Config(model=section))._fallback  # type: ignore[attr-defined]

    plain = open_language_model(Config(model=ModelSection(name="functiongemma/llamacpp")))
    assert isinstance(plain._fallback, RulesModel)  # type: ignore[attr-defined]
    assert fallback("") is None
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        fallback("openai/gpt-4.1-mini")
    with pytest.raises(ConfigError, match="name another model"):
        fallback("functiongemma/vllm")


def test_names_of_a_platform_lead_to_models_of_ours(tmp_path: Path) -> None:
    (tmp_path / "callagent.toml").write_text(
        '[model]\nname = "openai/small"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[model.names]\n"raven-3" = "openai/large"\n"*" = "openai/small"\nfast = "rules"\n'
    )
    config = load_config(tmp_path / "callagent.toml", {})
    model = open_language_model(config)
    assert isinstance(model, NamedModels)
    assert model.others.keys() == {"openai/large", "openai/small", "rules"}
    assert model.others["openai/small"] is model.configured
    assert model.others["openai/large"]._base_url == "http://127.0.0.1:9/v1"  # type: ignore[attr-defined]
    names = flow_settings(config, "sandbox").models
    assert [names.get(name, "") for name in ("raven-3", "gpt-4o", "fast", "")] == [
        "openai/large",
        "openai/small",
        "rules",
        "",
    ]


async def test_who_opens_a_project_hears_of_functions_that_cannot_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Path(shutil.copytree(MILL, tmp_path / "mill"))
    with (project / "functions" / "weigh.py").open("a") as file:
        file.write("import a_module_that_nobody_has\n")
    assert await opened(project)
    told = capsys.readouterr()
    line = next(each for each in (told.out + told.err).splitlines() if "function_not_imported" in each)
    for expected in ("functions/weigh.py", "line", "8", "a_module_that_nobody_has"):
        assert expected in line


async def test_a_language_that_the_project_does_not_have_is_refused() -> None:
    config = Config()
    settings = replace(flow_settings(config, "sandbox"), language="xx-XX")
    with pytest.raises(ProjectError, match=r"There is no language 'xx-XX'\. The project has: "):
        await open_project(MILL, open_model("rules"), config, settings)


@pytest.mark.parametrize("kind", ["adk_desk", "cx_desk"])
async def test_names_of_models_hold_for_agent_trees_too(kind: str) -> None:
    config = Config(model=ModelSection(name="rules", names={"gemini-2.5-flash": "rules"}))
    path = MILL.parent / kind
    project = await open_project(path, open_model("rules"), config, flow_settings(config, "sandbox"))
    try:
        assert project._settings.models["gemini-2.5-flash"] == "rules"  # type: ignore[attr-defined]
    finally:
        await project.close()


async def test_functions_are_told_the_secrets_of_the_folder_that_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "booking").write_text('{"key": "hush"}\n')
    files = {"functions/look.py": function("look", "return str(conv.utils.get_secret('booking')['key'])")}
    config = Config(function_secrets=str(tmp_path / "secrets"))
    root = write_project(tmp_path / "project", files)
    project = await open_project(root, open_model("rules"), config, flow_settings(config, "sandbox"))
    assert isinstance(project, FlowProject)
    look = project.find_function("look", None)
    assert look is not None
    try:
        answer = await project.run_function(call_info(), look, {}, {})
    finally:
        await project.close()
    assert answer.returned == "hush"
