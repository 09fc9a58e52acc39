"""`test_suite/` as data, and what is wrong with it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from callagent.agents.flows import check_project, load_project, load_test_cases
from callagent.agents.flows.format.test_cases import ExpectedCall, MockedAnswer, TestCase
from callagent.errors import ProjectError
from tests.agents.flows.support import write_project

CASE = """\
name: book-a-table
scenario: You want a table.
channel: webchat
language: en-US
variant: North
tags: [booking]
simulated_at: 2026-03-02T09:30:00
caller_number: '+49301'
sip_headers: {X-Line: 7}
integration_attributes: {vip: true, level: 3}
api_mocks:
  crm:
    find:
    - respond: {status: 404}
      repeat: 2
    - respond: {body: {id: 1}, headers: {X-A: b}}
      repeat: -1
prompt_assertions: [The agent books a table.]
function_call_assertions:
- name: book
  arguments:
  - {parameter_name: size, expected_value: '4', value_type: integer}
  - {parameter_name: outside, expected_value: 'true', value_type: boolean}
- name: hang_up
  is_asserted: false
"""
BASE = {
    "agent_settings/rules.txt": "Be brief.",
    "config/variant_attributes.yaml": "variants: [{name: North, is_default: true}]\nattributes: []\n",
    "voice/configuration.yaml": "greeting: {welcome_message: Hi., language_code: en-US}\n",
}


def cases(root: Path, text: str, name: str = "book_a_table") -> tuple[TestCase, ...]:
    project, _ = load_project(write_project(root, {**BASE, f"test_suite/{name}.yaml": text}))
    return load_test_cases(project)


def test_every_key_of_a_case_is_read(tmp_path: Path):
    (case,) = cases(tmp_path, CASE)
    assert (case.name, case.file, case.channel, case.variant) == (
        "book-a-table",
        "test_suite/book_a_table.yaml",
        "webchat",
        "North",
    )
    assert case.at == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    assert (case.caller_number, case.sip_headers) == ("+49301", {"X-Line": "7"})
    assert case.integration_attributes == {"vip": True, "level": 3}
    assert case.api_mocks["crm"]["find"] == (
        MockedAnswer(404, repeat=2),
        MockedAnswer(200, {"id": 1}, {"X-A": "b"}, -1),
    )
    assert case.function_calls == (
        ExpectedCall("book", {"size": 4, "outside": True}),
        ExpectedCall("hang_up", {}, asserted=False),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("caller_number: 4930", "book_a_table.yaml:2: 'caller_number' should be str. Put it in quotes."),
        ("language: xx", "Language 'xx' is not configured."),
        ("variant: West", "There is no variant 'West'."),
        ("channel: fax", "'channel' should be one of voice, webchat, not 'fax'."),
        ("simulated_at: soon", "'simulated_at' should be a time"),
        ("integration_attributes: {born: 2026-01-01}", "'born' is read as a date. Put it in quotes."),
        ("api_mocks: {crm: {find: [{repeat: -1}, {repeat: 1}]}}", "it can only be the last"),
        ("api_mocks: {crm: {find: [{repeat: 0}]}}", "'repeat' should be at least 1"),
        (
            "function_call_assertions: [{name: f, arguments: [{parameter_name: a, expected_value: x, "
            "value_type: integer}]}]",
            "'expected_value' of 'a' is no integer.",
        ),
    ],
)
def test_a_mistake_is_named_by_check_and_by_the_run_and_does_not_keep_the_project_from_loading(
    tmp_path: Path, line: str, message: str
):
    with pytest.raises(ProjectError) as failed:
        cases(tmp_path, f"scenario: s\n{line}\n")
    assert message in str(failed.value)
    assert any(message in str(error) for error in check_project(tmp_path).errors)
    assert not load_project(tmp_path)[1].report().errors


def test_a_case_without_a_scenario_is_a_mistake(tmp_path: Path):
    with pytest.raises(ProjectError, match="'scenario' is required"):
        cases(tmp_path, "name: book_a_table\n")


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"size": 4}, True),
        ({"size": "4", "more": 1}, True),
        ({"size": 5}, False),
        ({}, False),
        ({"size": True}, False),
        ({"size": "four"}, False),
    ],
)
def test_numbers_are_compared_as_numbers(given: dict[str, object], fits: bool):
    assert ExpectedCall("book", {"size": 4}).matches("book", given) is fits


def test_other_functions_do_not_match():
    assert not ExpectedCall("book", {}).matches("cancel", {})
    assert ExpectedCall("book", {"yes": True}).matches("book", {"yes": "True"})
    assert not ExpectedCall("book", {"name": ""}).matches("book", {})
