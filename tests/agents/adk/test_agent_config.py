from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.adk import check_adk_project, is_adk_project
from callagent.agents.adk.agent_config import AgentConfig, load_config
from callagent.agents.adk.config_keys import PROVIDER_SPECIFIC_KEYS, SAMPLING
from callagent.agents.kernel import Findings
from callagent.models.providers import anthropic, gemini, openai
from tests.agents.adk.support import PROJECTS, driven, write_project

LLM = "name: root\ninstruction: Be there.\n"


def errors(tmp_path: Path, text: str, **files: str) -> list[str]:
    project = write_project(tmp_path, {"root_agent.yaml": text, **files})
    return [str(each) for each in check_adk_project(project).errors]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "root_agent.yaml:1: A map with the keys of an agent is needed, but the file is empty."),
        ("- a\n", "root_agent.yaml:1: A map with the keys of an agent is needed, but the file is list."),
        ("name: [\n", "root_agent.yaml:2: Not valid YAML: "),
        ("name: root\n", "root_agent.yaml:1: the key 'instruction' is missing."),
        ("instruction: x\n", "root_agent.yaml:1: the key 'name' is missing."),
        ("name: user\ninstruction: x\n", "root_agent.yaml:1: 'name': 'user' stands for the caller"),
        ("name: my agent\ninstruction: x\n", "root_agent.yaml:1: 'name': 'my agent' is not a valid agent name"),
        (
            LLM + "instructions: x\n",
            "root_agent.yaml:3: 'instructions': there is no such key; the nearest is 'instruction'.",
        ),
        (LLM + "max_iterations: 3\n", "root_agent.yaml:3: 'max_iterations': there is no such key."),
        ("name: root\nagent_class: LoopAgent\nmodel: m\n", "'model': a LoopAgent has no such key."),
        ("name: root\nagent_class: LoopAgent\nmax_iterations: many\n", "'max_iterations': a whole number is needed."),
        (LLM + "sub_agents:\n  - child.yaml\n", "root_agent.yaml:4: 'sub_agents.0': a map with"),
        (LLM + "sub_agents:\n  - {}\n", "'sub_agents.0': exactly one of 'config_path' and 'code'"),
        (LLM + "sub_agents:\n  - {code: agency.a, config_path: a.yaml}\n", "'sub_agents.0': exactly one of"),
        (LLM + "sub_agents:\n  - config_path: /etc/a.yaml\n", "is an absolute path"),
        (LLM + "sub_agents:\n  - config_path: C:\\a.yaml\n", "is an absolute path"),
        (LLM + "sub_agents:\n  - config_path: ../a.yaml\n", "leads out of the folder of this file"),
        (LLM + "sub_agents:\n  - config_path: a.yaml\n", "'sub_agents.0.config_path': there is no file 'a.yaml'."),
        (LLM + "sub_agents:\n  - config_path: root_agent.yaml\n", "refer to each other in a circle"),
        (LLM + "sub_agents:\n  - code: os.path\n", "'os.path' is not in the project: agents may not refer to Python's"),
        (LLM + "sub_agents:\n  - code: other.thing\n", "a path that begins with 'agency.' is needed"),
        (LLM + "tools:\n  - google_search\n", "'tools.0': a map with 'name' is needed but got str."),
        (LLM + "tools:\n  - name: subprocess.run\n", "agents may not refer to Python's own modules"),
        (LLM + "tools:\n  - name: yaml.load\n", "agents may not refer to the package 'yaml'"),
        (LLM + "tools:\n  - name: pip.main\n", "agents may not refer to the package 'pip'"),
        (LLM + "sub_agents:\n  - code: ruamel.yaml.YAML\n", "agents may not refer to the package 'ruamel'"),
        (LLM + "tools:\n  - {name: agency.f, arg: 1}\n", "'tools.0.arg': there is no such key; the nearest is 'args'."),
        (LLM + "tools:\n  - {name: agency.f, args: [1]}\n", "'tools.0.args': a map is needed"),
        (LLM + "before_model_callbacks:\n  - {name: builtins.print}\n", "agents may not refer to Python's own modules"),
        (
            LLM + "before_model_callbacks:\n  - {name: agency.f, args: [{name: a}]}\n",
            "of maps is needed, each with 'value'",
        ),
        (LLM + "tools:\n  - {name: callagent.sing}\n", "'tools.0.name': there is no tool 'callagent.sing'"),
        (LLM + "tools:\n  - {name: callagent.hand_off}\n", "'tools.0.args': the key 'destination' is missing"),
        (
            LLM + "tools:\n  - {name: callagent.hand_off, args: {destination: a, method: fax}}\n",
            "'tools.0.args.method': one of refer, invite, bye is needed",
        ),
        (LLM + "tools:\n  - {name: callagent.hang_up, args: {x: 1}}\n", "'tools.0.args.x': there is no such key"),
        (LLM + "tools:\n  - {name: callagent.collect_digits, args: {max_digits: x}}\n", "int is needed but got str"),
        (
            LLM + "tools:\n  - {name: callagent.collect_digits, args: {max_digits: true}}\n",
            "int is needed but got bool",
        ),
        (
            LLM + "tools:\n  - {name: callagent.collect_digits, args: {first_digit_timeout: true}}\n",
            "'tools.0.args.first_digit_timeout': float is needed but got bool",
        ),
        (LLM + "before_model_callbacks: agency.f\n", "'before_model_callbacks': a list is needed but got str."),
        (LLM + "include_contents: some\n", "'include_contents': one of default, none is needed"),
        (LLM + "disallow_transfer_to_parent: maybe\n", "true or false is needed but got str"),
        (LLM + "model: m\nmodel_code: {name: agency.m}\n", "'model_code': 'model' is set too"),
        (LLM + "generate_content_config: {temperature: hot}\n", "'generate_content_config.temperature': a number"),
        (LLM + "generate_content_config: {maxOutputTokens: x}\n", "maxOutputTokens': a whole number is needed"),
        (LLM + "generate_content_config: {temprature: 1}\n", "there is no such key; the nearest is 'temperature'"),
        (LLM + "description:\n", "'description': a value is needed"),
        (LLM + "tools:\n", "'tools': a value is needed"),
        ("name: a\ninstruction:\n", "'instruction': a value is needed"),
        (
            LLM + "generate_content_config: {systemInstruction: x}\n",
            "it is not allowed here, because the agent sets it",
        ),
        (LLM + "generate_content_config: {responseSchema: {type: OBJECT}}\n", "set 'output_schema' of the agent"),
        (LLM + "generate_content_config: {topP: 0.1, top_p: 0.2}\n", "it is set twice, in snake_case and in camelCase"),
        (LLM + "generate_content_config: {stop_sequences: [1]}\n", "a list of texts is needed"),
        (LLM + "static_instruction: {txt: S}\n", "a map with 'parts'"),
        (
            LLM + "tools:\n  - {name: AgentTool, args: {agent: {code: agency.a}, skip_sumarization: true}}\n",
            "'tools.0.args.skip_sumarization': there is no such key; the nearest is 'skip_summarization'.",
        ),
        ("name: root\nagent_class: pickle.loads\n", "'agent_class': 'pickle.loads' is not in the project"),
        ("name: root\nagent_class: WorkflowAgent\n", "'agent_class': 'WorkflowAgent' is not a dotted path"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    assert any(expected in each for each in errors(tmp_path, text)), errors(tmp_path, text)


def test_an_error_in_a_file_below_names_that_file(tmp_path: Path) -> None:
    root = LLM + "sub_agents:\n  - config_path: sub/child.yaml\n"
    found = errors(tmp_path, root, **{"sub/child.yaml": "name: child\n\ninstruction: x\ntool: []\n"})
    assert found == ["sub/child.yaml:4: 'tool': there is no such key; the nearest is 'tools'."]


def test_two_agents_of_one_name_are_refused(tmp_path: Path) -> None:
    root = LLM + "sub_agents:\n  - config_path: child.yaml\n"
    found = errors(tmp_path, root, **{"child.yaml": LLM})
    assert found == ["child.yaml:1: 'name': 'root' is also the name of the agent in root_agent.yaml; choose another."]


@pytest.mark.parametrize(
    "text",
    [
        "agent_class: ''\n" + LLM,
        "agent_class: google.adk.agents.llm_agent.LlmAgent\n" + LLM,
        "agent_class: LoopAgent\nname: root\nmax_iterations: '3'\n",
        "agent_class: agency.code.Mine\nname: root\nwhatever: 1\n",
        LLM + "tools:\n  - {name: AgentTool, args: {agent: ./child.yaml}}\n",
        LLM + "tools:\n  - {name: AgentTool, args: [{name: agent, value: {config_path: child.yaml}}]}\n",
        LLM + "tools:\n  - {name: agency.f, args: [{name: a, value: 1}]}\n",
        LLM + "before_agent_callbacks:\n  - {name: .hooks.f, args: []}\n",
        LLM + "before_agent_callbacks:\n  - {name: .hooks.f, args: [{value: 1}, {name: b, value: 2}]}\n",
        LLM + "sub_agents:\n  - config_path: .\\child.yaml\n",
        LLM + "tools:\n  - {name: callagent.hang_up}\n",
        "agent_class: google.adk.Agent\n" + LLM,
        "agent_class: LoopAgent\nname: root\nmax_iterations: 3.0\n",
        LLM + "disallow_transfer_to_parent: 'true'\ndisallow_transfer_to_peers: 0\n",
        LLM + "static_instruction: [S, {text: T}]\n",
        LLM + "generate_content_config: {temperature: '0.5', max_output_tokens: 5.0}\n",
    ],
)
def test_both_generations_of_the_schema_are_read(tmp_path: Path, text: str) -> None:
    assert errors(tmp_path, text, **{"child.yaml": "name: child\ninstruction: x\n"}) == []


@pytest.mark.parametrize("name", ["adk_desk", "adk_library", "adk_steps"])
def test_the_samples_have_no_errors(name: str) -> None:
    assert is_adk_project(PROJECTS / name)
    assert check_adk_project(PROJECTS / name).errors == ()


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    text = LLM + "tools:\n  - name: google_search\ngenerate_content_config:\n  candidateCount: 2\n  topP: 0.5\n"
    project = write_project(tmp_path, {"root_agent.yaml": text})
    assert [str(each) for each in check_adk_project(project).warnings] == [
        "root_agent.yaml:4: The tool 'google_search' is not available here: its agent fails when it asks the model.",
        "root_agent.yaml:6: 'generate_content_config.candidateCount' has no effect here.",
    ]


def test_what_only_some_providers_take_is_told_as_they_take_it(tmp_path: Path) -> None:
    taken = {"anthropic": anthropic._SAMPLING, "gemini": gemini._SAMPLING, "openai": openai._SAMPLING}
    for key, ours in SAMPLING.items():
        assert PROVIDER_SPECIFIC_KEYS.get(key, tuple(taken)) == tuple(
            each for each, names in taken.items() if ours in names
        ), key
    project = write_project(tmp_path, {"root_agent.yaml": LLM + "generate_content_config:\n  topK: 3\n  seed: 4\n"})
    assert [str(each) for each in check_adk_project(project).warnings] == [
        "root_agent.yaml:4: 'generate_content_config.topK' has an effect with models anthropic/… and gemini/… only.",
        "root_agent.yaml:5: 'generate_content_config.seed' has an effect with models gemini/… and openai/… only.",
    ]


async def test_safety_settings_reach_the_model(tmp_path: Path) -> None:
    settings = "  safetySettings: [{category: HARM_CATEGORY_HARASSMENT, threshold: OFF}]\n"
    files = {
        "root_agent.yaml": LLM + "sub_agents: [{code: agency.agents.helper}]\ngenerate_content_config:\n" + settings,
        "__init__.py": "",
        "agents.py": """
            from google.adk.agents import LlmAgent
            from google.genai import types

            unsafe = types.SafetySetting(
                category=types.HarmCategory.HARM_CATEGORY_HATE_SPEECH,
                threshold=types.HarmBlockThreshold.BLOCK_ONLY_HIGH,
            )
            helper = LlmAgent(
                name="helper",
                instruction="Help.",
                generate_content_config=types.GenerateContentConfig(safety_settings=[unsafe]),
            )
        """,
    }
    project = write_project(tmp_path, files)
    (warning,) = check_adk_project(project).warnings
    assert (warning.line, "models gemini/… only" in warning.message) == (5, True)
    async with driven(project) as agent:
        root = agent.agent.conversation.root  # type: ignore[attr-defined]
        assert root.safety == {"HARM_CATEGORY_HARASSMENT": "OFF"}
        assert root.children[0].safety == {"HARM_CATEGORY_HATE_SPEECH": "BLOCK_ONLY_HIGH"}


def test_a_tree_is_read_with_its_files() -> None:
    root = load_config(PROJECTS / "adk_desk", Findings())
    assert root is not None
    children = [child.name for child in root.children if isinstance(child, AgentConfig)]
    assert children == ["repairs", "sales"]
    assert [each.path for each in root.code["before_model_callbacks"]] == [
        "adk_desk.callbacks.refuse_insults",
        "adk_desk.callbacks.add_opening_hours",
    ]


def test_a_folder_without_root_agent_is_no_project(tmp_path: Path) -> None:
    assert not is_adk_project(tmp_path)
