"""The loader: what it reads, and that every mistake names file, line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callagent.agents.flows import load_project
from callagent.agents.kernel import Findings, clean_name, tool_name
from callagent.agents.kernel.documents import parse_yaml
from tests.agents.flows.support import FERRY, flow_config, function, step, write_project

BASE = {"agent_settings/rules.txt": "Rules."}
ONE_FLOW = {"flows/f/flow_config.yaml": "name: F\ndescription: d\nstart_step: s\n"}


def errors(root: Path, files: dict[str, str]) -> list[str]:
    _, findings = load_project(write_project(root, {**BASE, **files}))
    return [str(error) for error in findings.report().errors]


def test_the_ferry_project_is_read_whole():
    project, findings = load_project(FERRY)
    assert findings.report().errors == ()
    assert (project.name, project.account_id, project.languages.all) == ("Island Ferry", "island", ("en-GB", "de-DE"))
    assert set(project.functions) == {"booking_wanted", "dog_noted", "goodbye", "person_wanted"}
    assert project.start_function is not None
    assert project.end_function is not None
    flow = project.flows["Booking"]
    assert (set(flow.steps), set(flow.function_steps)) == ({"Collect details", "Confirm"}, {"entry"})
    assert project.handoffs["office"].headers == (("X-Party", "$party"),)
    assert project.variants.value("south", "company") == "South Island Ferries"
    assert [topic.name for topic in project.topics] == ["dogs"]


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("order management flow (V2)", "order_management_flow_v2"),
        ("  A--B  c ", "a_b_c"),
        ("Straße / Élan", "straße_élan"),
        ("__x__", "x"),
    ],
)
def test_names_are_cleaned_for_files(name: str, cleaned: str):
    assert clean_name(name) == cleaned


def test_tool_names_are_plain_and_short():
    assert tool_name("transfer_to", "Büro Nord!") == "transfer_to_b_ro_nord"
    assert len(tool_name("condition", "x" * 100)) == 64


ENTITY = "entities:\n  - name: a\n    entity_type: {}\n    config: {}\n"
HANDOFF = "handoffs:\n  - {{name: a, is_default: {}, sip_config: {{method: {}}}}}\n"
API = "api_integrations: [{name: a, operations: [{name: o, resource: /x, method: LIST}]}]\n"
CONDITIONS = "conditions:\n  - name: c\n    condition_type: step_condition\n"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config/entities.yaml", "entities: 3\n", "config/entities.yaml:1: 'entities' should be list but got int."),
        ("config/entities.yaml", ENTITY.format("colour", "{}"), ":3: Unknown entity_type 'colour'"),
        (
            "config/entities.yaml",
            ENTITY.format("numeric", "{hasRange: 'yes'}"),
            ":4: Config field 'has_range' should be of type 'bool' for entity type 'numeric'",
        ),
        ("config/handoffs.yaml", HANDOFF.format("false", "bye"), "Multiple or zero default handoffs detected: []"),
        ("config/handoffs.yaml", HANDOFF.format("true", "call"), ":2: Unknown handoff method 'call'"),
        ("config/handoffs.yaml", HANDOFF.format("true", "refer, phone_number: 49"), "Put it in quotes"),
        ("agent_settings/languages.yaml", "additional_languages: []\n", "Default language code is required."),
        ("agent_settings/languages.yaml", "default_language: english!\n", "Invalid language code: 'english!'"),
        ("agent_settings/experimental_config.json", '{"a": 1,\n}', "experimental_config.json:2: Not valid JSON"),
        ("agent_settings/guardrails.yaml", "platform_guardrails: []\n", "platform_guardrails lacks"),
        (
            "agent_settings/role.yaml",
            "value: Receptionist\ncustom: x\n",
            "Custom role can only be set if role is 'other'.",
        ),
        ("config/variant_attributes.yaml", "variants: [{name: a}]\n", "Exactly one variant should be the default"),
        (
            "config/variant_attributes.yaml",
            "attributes: [{name: class, values: {}}]\n",
            "not a valid Python identifier",
        ),
        ("config/sms_templates.yaml", "sms_templates: [{name: a, text: b}]\n", "'env_phone_numbers' is required"),
        (
            "config/translations.yaml",
            "translations: [{name: a, translations: {fr: b}}]\n",
            "lacks the languages ['en-US']",
        ),
        ("voice/configuration.yaml", "greeting: {welcome_message: Hi}\n", "'greeting.language_code' is required"),
        ("voice/speech_recognition/asr_settings.yaml", "speech_end_delay_ms: 50\n", "between 200 and 1500"),
        (
            "voice/response_control/pronunciations.yaml",
            "pronunciations: [{regex: '('}]\n",
            "Not a valid regular expression",
        ),
        ("topics/a.yaml", f"name: a\nexample_queries: {['x'] * 21}\n", "A topic has at most 20 example queries"),
        ("child_topics/nowhere/a.yaml", "name: a\n", "cleaned name of a variant"),
        (
            "flows/f/flow_config.yaml",
            flow_config("G", "x"),
            "Flow folder name does not match flow name in config. f != g",
        ),
        ("flows/f/flow_config.yaml", flow_config("F", "x"), "flows/f/flow_config.yaml:3: Start step 'x' not found."),
        ("flows/f/flow_config.yaml", "name: F\ndescription: d\n", "Start step cannot be empty."),
        ("flows/f/steps/x.yaml", "step_type: odd\nname: x\nprompt: p\n", "x.yaml:1: 'step_type' should be"),
        ("flows/f/steps/x.yaml", "step_type: advanced_step\nname: x\n", "'prompt' is required"),
        ("flows/f/steps/x.yaml", step("x!", "p"), "Step name 'x!' may hold"),
        ("flows/f/steps/x.yaml", f"step_type: default_step\nname: x\nprompt: p\n{CONDITIONS}", "needs 'child_step'"),
        ("topics/a.yaml", "name: [\n", "Not valid YAML"),
        (
            "agent_settings/safety_filters.yaml",
            "categories: {hate: {level: medium}}\n",
            "['violence', 'sexual', 'self_harm']",
        ),
        (
            "voice/safety_filters.yaml",
            "categories: {hate: {level: hard}}\n",
            "one of lenient, medium, strict, not 'hard'",
        ),
        ("voice/safety_filters.yaml", "categories: {}\n", "'enabled' is required"),
        ("config/api_integrations.yaml", "api_integrations: [{name: Big}]\n", "should match [a-z_][a-z0-9_]*"),
        ("config/api_integrations.yaml", API, "one of GET, POST, PATCH, PUT, DELETE, not 'LIST'"),
        ("config/mcp.yaml", "mcp_servers: [{provider_id: a, url: 'ftp://x'}]\n", "http(s) address"),
        ("config/mcp.yaml", "mcp_servers: [{provider_id: a, url: 'https://x', timeout: 90}]\n", "between 1 and 30"),
        ("voice/configuration.yaml", "filler_phrases: {enabled: true}\n", "needs at least one phrase"),
        ("voice/configuration.yaml", "filler_phrases: {phrase: [a]}\n", "has no key 'phrase'"),
        ("voice/configuration.yaml", "background_ambience: {loudness: 0}\n", "between -70 and -20"),
        ("topics/a.yaml", "name: a\nname: b\n", "topics/a.yaml:2: Not valid YAML: found duplicate key"),
        ("topics/a.yaml", "<<<<<<< ours\nname: a\n=======\nname: b\n>>>>>>> theirs\n", "merge conflict markers"),
    ],
)
def test_a_mistake_names_its_place(tmp_path: Path, file: str, text: str, message: str):
    base = ONE_FLOW if file.startswith("flows/f/steps") else {}
    found = errors(tmp_path, {**base, file: text})
    assert any(message in error and error.startswith(file.split("/")[0]) for error in found), found


def test_an_unknown_ambience_is_a_warning(tmp_path: Path):
    text = "background_ambience: {enabled: true, preset: cafe}\n"
    _, findings = load_project(write_project(tmp_path, {"voice/configuration.yaml": text}))
    (warning,) = [each.message for each in findings.report().warnings if "preset" in each.message]
    assert "office-ambiance" in warning


def test_a_topic_name_is_used_once(tmp_path: Path):
    found = errors(tmp_path, {"topics/a.yaml": "name: a\n", "topics/b.yaml": "name: a\n"})
    assert found == ["topics/b.yaml:1: Topic 'a' is already defined in topics/a.yaml. Rename one of the two."]


def test_unknown_keys_and_files_are_left_alone(tmp_path: Path):
    files = {"topics/a.yaml": "name: a\nfuture: {x: 1}\n", "README.md": "<<<", "config/mcp.yaml": "mcp_servers: []\n"}
    assert errors(tmp_path, files) == []


def test_windows_line_ends_and_byte_order_marks_are_taken(tmp_path: Path):
    write_project(tmp_path, BASE)
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "a.yaml").write_bytes("\ufeffname: a\r\ncontent: b\r\n".encode())
    project, findings = load_project(tmp_path)
    assert findings.errors == []
    assert project.topics[0].content == "b"


def test_yes_and_no_are_words(tmp_path: Path):
    project, _ = load_project(write_project(tmp_path, {**BASE, "topics/a.yaml": "name: yes\ncontent: no\n"}))
    assert (project.topics[0].name, project.topics[0].content) == ("yes", "no")


def test_a_disabled_topic_is_left_out_and_a_nameless_one_has_its_path(tmp_path: Path):
    files = {"topics/a.yaml": "name: a\nenabled: false\n", "topics/deep/b.yaml": "content: c\n"}
    project, _ = load_project(write_project(tmp_path, {**BASE, **files}))
    assert [topic.name for topic in project.topics] == ["deep/b"]


def test_the_older_identity_becomes_a_sentence(tmp_path: Path):
    files = {
        "agent_settings/personality.yaml": "adjectives: {Polite: true, Kind: true, Calm: false}\ncustom: Be brief.\n",
        "agent_settings/role.yaml": "value: CustomerServiceRepresentative\nadditional_info: At a shop.\n",
    }
    project, _ = load_project(write_project(tmp_path, {**BASE, **files}))
    assert project.identity == "You are a polite, kind customer service representative.\nAt a shop.\nBe brief."


def test_a_folder_that_is_no_project_says_so(tmp_path: Path):
    _, findings = load_project(tmp_path / "nothing")
    assert "There is no folder" in findings.errors[0].message


def test_a_function_file_belongs_to_its_flow(tmp_path: Path):
    files = {
        "flows/f/flow_config.yaml": flow_config("F", "x"),
        "flows/f/steps/x.yaml": step("x", "p"),
        "flows/f/functions/go.py": function("go", "pass", flow=True),
    }
    project, _ = load_project(write_project(tmp_path, {**BASE, **files}))
    assert (project.flows["F"].functions["go"].kind, project.flows["F"].functions["go"].flow) == ("flow", "F")


@settings()
@given(st.text(alphabet="ab:- \n[]{}&*#'\"!|>?,1", max_size=60))
def test_any_text_is_a_document_or_an_error(text: str):
    findings = Findings()
    document = parse_yaml(text, "f.yaml", findings)
    assert document is not None or findings.errors
    if document is not None:
        document.root()


VARIANTS = """
variants: [{name: a, is_default: true}, {name: b}]
attributes:
- {name: plain, values: {a: x, b: 7}}
- {name: count, kind: number, values: {a: "3", b: ""}}
- {name: price, kind: number, values: {a: "2.5", b: x}}
- {name: open, kind: boolean, values: {a: "true", b: false}}
- {name: size, kind: enum, config: {values: [s, m]}, values: {a: s, b: null}}
- {name: extra, kind: object, values: {a: {k: 1}}}
"""


def test_variant_attributes_have_their_types_and_blanks_are_unset(tmp_path: Path):
    project, findings = load_project(write_project(tmp_path, {**BASE, "config/variant_attributes.yaml": VARIANTS}))
    assert findings.errors == []
    assert project.variants.attributes["a"] == {
        "plain": "x",
        "count": 3,
        "price": 2.5,
        "open": True,
        "size": "s",
        "extra": {"k": 1},
    }
    assert project.variants.attributes["b"] == {"plain": "7", "open": False}
    assert "Missing variants for variant attribute: extra: ['b']" in findings.warnings[0].message
