from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows import check_imports, check_project, project_runtime
from callagent.agents.flows.check import ignored_settings, unknown_sections
from callagent.agents.flows.format.experimental import ExperimentalSettings
from callagent.agents.kernel.patterns import has_nested_repeats
from callagent.errors import ProjectError
from callagent.testing.in_process import InProcessPool
from tests.agents.flows.support import FERRY, driven, flow_config, function, step, write_project

FLOW = {
    "agent_settings/rules.txt": "{{fn:help}}",
    "functions/help.py": function("help", "return 'x'"),
    "voice/configuration.yaml": "greeting: {welcome_message: Hi., language_code: en-US}\n",
    "config/entities.yaml": "entities: [{name: day, entity_type: date}]\n",
    "flows/f/flow_config.yaml": flow_config("F", "x"),
    "flows/f/steps/x.yaml": step("x", "Prompt."),
}
DEFAULT = "step_type: default_step\nname: y\n"
CONDITION = "conditions: [{{name: c, condition_type: step_condition, child_step: {}, required_entities: [{}]}}]\n"


def report(root: Path, files: dict[str, str]) -> tuple[list[str], list[str]]:
    found = check_project(write_project(root, {**FLOW, **files}))
    return [str(each) for each in found.errors], [str(each) for each in found.warnings]


def test_a_sound_project_has_no_findings(tmp_path: Path):
    assert report(tmp_path, {}) == ([], [])
    assert check_project(FERRY).as_json() == {"errors": [], "warnings": []}


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("agent_settings/rules.txt", "a\nb {{fn:gone}}", "rules.txt:2: Invalid references: ['fn:gone']"),
        ("agent_settings/rules.txt", "{{ft:x}}", "'ft' cannot be used in this text."),
        ("agent_settings/persona.txt", "{{fn:help}}", "persona.txt:1: Invalid references: ['fn:help']"),
        (
            "voice/configuration.yaml",
            "greeting: {welcome_message: '{{fn:help}}', language_code: en}\n",
            "Invalid references",
        ),
        ("topics/a.yaml", "name: a\nactions: '{{ho:nobody}}'\n", "config/handoffs.yaml"),
        (
            "flows/f/steps/x.yaml",
            step("x", "one\n{{ft:gone}}"),
            "x.yaml:5: Invalid references: ['ft:gone']. The flow has no",
        ),
        ("flows/f/steps/x.yaml", step("x", "{{entity:gone}}"), "config/entities.yaml"),
        ("flows/f/steps/y.yaml", DEFAULT + "prompt: '{{fn:help}}'\n", "Default steps cannot reference functions."),
        (
            "flows/f/steps/y.yaml",
            DEFAULT + "prompt: p\nextracted_entities: [gone]\n",
            "Extracted entities not found: ['gone']",
        ),
        (
            "flows/f/steps/y.yaml",
            DEFAULT + "prompt: p\n" + CONDITION.format("gone", ""),
            "y.yaml:4: Step 'gone' not found",
        ),
        (
            "flows/f/steps/y.yaml",
            DEFAULT + "prompt: p\n" + CONDITION.format("x", "gone"),
            "Required entities not found: ['gone']",
        ),
        (
            "flows/f/functions/go.py",
            function("go", "flow.goto_step('Z')", flow=True),
            "flow.goto_step('Z') references a step that does not exist in flow 'F'.",
        ),
        (
            "functions/go.py",
            function("go", "conv.goto_flow('Z')"),
            "conv.goto_flow('Z') references a flow that does not exist.",
        ),
        (
            "functions/go.py",
            function(
                "go",
                "pass",
                decorators='@func_description("d")\n@func_latency_control(delay_responses=[("{{fn:a}}", 1)])\n',
            ),
            "Invalid references: ['fn:a'] in delay response message '{{fn:a}}'.",
        ),
        (
            "voice/response_control/phrase_filtering.yaml",
            "phrase_filtering: [{name: n, regular_expressions: [a], function: gone}]\n",
            "which is not a global function",
        ),
    ],
)
def test_a_reference_to_nothing_is_an_error(tmp_path: Path, file: str, text: str, message: str):
    errors, _ = report(tmp_path, {file: text})
    assert any(message in error for error in errors), errors


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("voice/configuration.yaml", "{}\n", "There is no greeting"),
        ("topics/a.yaml", "name: a\ncontent: '{{fn:help}}'\n", "Move them to 'actions'"),
        ("flows/f/functions/go.py", function("go", "return 'x'", flow=True), "the model will never call it"),
        ("flows/f/function_steps/go.py", function("go", "pass", flow=True, decorators="\n"), "the call stays on it"),
        (
            "flows/f/steps/x.yaml",
            step("x", "Prompt.", asr="{provider: google}", vad="{vad_end: 1, vad_start: 0.2}"),
            "These settings of steps have no effect on this server: asr.provider, vad.vad_start.",
        ),
        ("functions/go.py", function("go", "conv.exit_flow()\nconv.goto_flow('F')"), "the goto wins"),
        (
            "config/handoffs.yaml",
            "handoffs: [{name: desk, is_default: true, sip_config: {method: refer}}]\n",
            "goes to the target of its name in callagent.toml",
        ),
        ("chat/configuration.yaml", "greeting: {welcome_message: Hi, language_code: en}\n", "Missing: ['style prompt'"),
    ],
)
def test_what_will_surprise_the_author_is_a_warning(tmp_path: Path, file: str, text: str, message: str):
    errors, warnings = report(tmp_path, {file: text})
    assert errors == []
    assert any(message in warning for warning in warnings), warnings


def test_the_json_has_file_line_and_message(tmp_path: Path):
    found = check_project(write_project(tmp_path, {**FLOW, "agent_settings/rules.txt": "{{fn:gone}}"}))
    assert json.loads(json.dumps(found.as_json()))["errors"] == [
        {
            "file": "agent_settings/rules.txt",
            "line": 1,
            "message": "Invalid references: ['fn:gone']. There is no functions/gone.py.",
        }
    ]


async def test_a_file_that_cannot_be_imported_is_a_warning(tmp_path: Path):
    project = write_project(
        tmp_path, {**FLOW, "functions/broken.py": "import nothing_like_this\n" + function("broken", "pass")}
    )
    pool = InProcessPool(project_runtime(project))
    found = (await check_imports(pool)).warnings
    await pool.close()
    assert [finding.file for finding in found] == ["functions/broken.py"]
    assert "nothing_like_this" in found[0].message


async def test_a_project_with_errors_is_not_run(tmp_path: Path):
    project = write_project(tmp_path, {**FLOW, "flows/f/flow_config.yaml": flow_config("F", "gone")})
    with pytest.raises(ProjectError, match=r"flow_config.yaml:3: Start step 'gone' not found"):
        async with driven(project):
            pass


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if conv.state.done == False:\n    pass",
            "'conv.state.done == False' does not hold when conv.state.done is None",
        ),
        ("return str(conv.real_time_config.get('x') == False)", "Write 'not conv.real_time_config.get('x')'"),
        ("conv.state.a = 1\nconv.write_metric('A')\nconv.log.info('a')", "neither returns anything nor goes anywhere"),
        ("return str(conv.state.done is False)", None),
        ("x = 1 == False\nreturn 'x'", None),
        ("helper(conv)", None),
        ("flow.goto_step('x')", None),
        ("raise ValueError", None),
    ],
)
def test_surprises_in_a_flow_function_are_warnings(tmp_path: Path, body: str, message: str | None):
    files = {
        "flows/f/steps/x.yaml": step("x", "{{ft:act}}"),
        "flows/f/functions/act.py": function("act", body, flow=True),
    }
    errors, warnings = report(tmp_path, files)
    assert errors == []
    assert any(message in warning for warning in warnings) if message else not warnings


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("conv.exit_flow()\nconv.goto_flow('F')", "the goto wins"),
        ("if conv.state.a:\n    conv.exit_flow()\nflow.goto_step('x')", "the goto wins"),
        ("try:\n    conv.exit_flow()\nfinally:\n    flow.goto_step('x')", "the goto wins"),
        ("if conv.state.a:\n    conv.exit_flow()\n    return\nflow.goto_step('x')", None),
        ("if conv.state.a:\n    conv.exit_flow()\nelse:\n    flow.goto_step('x')", None),
        ("if conv.state.a:\n    return 'yes'\nconv.state.b = 1", "ends without `return` or a goto"),
        ("if conv.state.a:\n    return 'yes'\nflow.goto_step('x')", None),
        ("for n in range(3):\n    if n:\n        return 'yes'\nraise ValueError", None),
        ("with open('f') as f:\n    return f.read()", None),
        ("match conv.state.a:\n    case 1:\n        return 'one'\n    case _:\n        flow.goto_step('x')", None),
        ("result = conv.call_handoff('office')\nreturn result", "returns None"),
        ("return {'transition': {'goto_flow': 'Gone'}}", "goes to flow 'Gone', which does not exist"),
        ("return {'transition': {'goto_flow': 'F', 'goto_step': 'gone'}}", "goes to step 'gone', which flow 'F' lacks"),
        ("return {'transition': {'goto_step': 'gone'}}", "goes to step 'gone'"),
        ("return {'transition': {'goto_flow': conv.state.x, 'goto_step': 'gone'}}", None),
        ("return {'transition': flow.goto_step('x')}", None),
    ],
)
def test_surprises_on_the_ways_through_a_function_are_warnings(tmp_path: Path, body: str, message: str | None):
    errors, warnings = report(
        tmp_path,
        {
            "flows/f/steps/x.yaml": step("x", "{{ft:go}}"),
            "flows/f/functions/go.py": function("go", body, flow=True),
            "config/handoffs.yaml": "handoffs: [{name: office, is_default: true}]\n",
        },
    )
    assert errors == []
    if message is None:
        assert warnings == []
    else:
        assert any(message in each for each in warnings), warnings


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"flows/f/function_steps/s.py": function("s", "conv.state.x = 1\nreturn", flow=True, decorators="\n")},
            "The function step goes nowhere",
        ),
        (
            {"flows/f/function_steps/s.py": function("s", "flow.goto_step('x')", flow=True)},
            "@func_description has no effect on a function step.",
        ),
        (
            {
                "functions/start_function.py": function(
                    "start_function", "return ''", decorators="@func_latency_control(0, 0, [('Hm.', 1)])\n"
                )
            },
            "@func_latency_control has no effect on the start function.",
        ),
        ({"functions/unseen.py": function("unseen", "return 'x'")}, "No prompt references {{fn:unseen}}"),
        (
            {
                "voice/configuration.yaml": "greeting: {welcome_message: Hi., language_code: en-US}\n"
                "filler_phrases: {enabled: true, phrases: [Hm.], initial_interval_seconds: 0.5}\n"
            },
            "Filler phrases after 0.5 s are heard in nearly every turn.",
        ),
    ],
)
def test_what_has_no_effect_or_too_much_is_a_warning(tmp_path: Path, files: dict[str, str], message: str):
    errors, warnings = report(tmp_path, files)
    assert errors == []
    assert any(message in each for each in warnings), warnings


def test_real_time_data_is_checked_against_its_schema(tmp_path: Path):
    schema = '{"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}'
    folder = "real_time_configuration/live"
    files = {f"{folder}/schema.json": schema, f"{folder}/data.json": '{"open": true}'}
    assert report(tmp_path, files) == ([], [])
    (error,), _ = report(tmp_path, {**files, f"{folder}/data.json": '{"open": "yes"}'})
    assert error == f"{folder}/data.json:1: open: 'yes' is not of type 'boolean'."
    (error,), _ = report(tmp_path, {**files, f"{folder}/data.json": "{\n,"})
    assert error.startswith(f"{folder}/data.json:2: Not valid JSON")
    (error,), _ = report(tmp_path, {**files, f"{folder}/schema.json": '{"type": 5}'})
    assert "Not a valid JSON schema" in error


def test_functions_of_a_flow_that_is_none(tmp_path: Path):
    errors, _ = report(tmp_path, {"flows/g/functions/go.py": function("go", "return 'x'", flow=True)})
    problem = "flows/g:1: Can't find flow_id for transition function. The flow has no flow_config.yaml."
    assert errors == [f"{problem} Add the file, or remove the folder."]


DATA: dict[str, Any] = {
    "asr": {
        "initial_timeout": 5,
        "eager_final": True,
        "use_asr_lib": True,
        "flow_overrides": {"F": {"steps": {"S": {"provider": "x"}}}},
    },
    "ragdoll": {"top_k": 3, "soft_threshold": 0.1},
    "filler_utterances": {"is_enabled": True, "anything": 1},
    "audio_enhancement": {"krisp": {}},
    "newer": {},
}
FILTER = "phrase_filtering: [{name: a, regular_expressions: ['(a+)+$']}]\n"


def test_settings_without_effect_are_named_and_the_others_are_not():
    experimental = ExperimentalSettings(DATA)
    assert ignored_settings(experimental) == [
        "asr.provider",
        "asr.use_asr_lib",
        "audio_enhancement",
        "ragdoll.soft_threshold",
    ]
    assert unknown_sections(experimental) == ["newer"]
    assert ignored_settings(ExperimentalSettings()) == unknown_sections(ExperimentalSettings()) == []


def test_check_says_it_once(tmp_path: Path):
    files = {
        "agent_settings/experimental_config.json": json.dumps(DATA),
        "voice/response_control/phrase_filtering.yaml": FILTER,
    }
    warnings = [str(each) for each in check_project(write_project(tmp_path, files)).warnings]
    assert sum("no effect on this server: asr.provider, asr.use_asr_lib, audio" in each for each in warnings) == 1
    assert any("Unknown sections: newer." in each for each in warnings)
    assert any("'(a+)+$' repeats a repetition" in each for each in warnings)


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\w+)*x", r"(?:\d+|x)*", r"((a*))+", r"(?:[a-z]+\s?)+!", r"(x{2,})+"])
def test_nested_repetitions_are_found(pattern: str):
    assert has_nested_repeats(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"(a+,)+", r"\b10([ -])digit", r"([Ll]et me|I'll) (put|hand) you", r"a+b+", r"(a+)?", r"\(\d+\)+", r"[(a+)]+"],
)
def test_ordinary_expressions_are_not(pattern: str):
    assert not has_nested_repeats(pattern)
