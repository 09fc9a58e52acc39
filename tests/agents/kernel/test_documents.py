from __future__ import annotations

import pytest

from callagent.agents.kernel import Findings, InvalidYaml, compose_yaml, parse_yaml


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: c: d\n", 2, "mapping values are not allowed here"),
        ("a: 1\nb: &b\n  c: *b\n", 2, "an alias refers to the map or list that it stands in"),
        ("a: &a [*a, *a]\n", 1, "an alias refers to the map or list that it stands in"),
        ("[" * 3000, 1, "it is nested too deep"),
    ],
)
def test_what_is_not_valid_is_told_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidYaml) as raised:
        compose_yaml(text)
    assert (raised.value.line, str(raised.value)) == (line, f"Not valid YAML: {problem}.")


def test_aliases_of_aliases_are_read_in_bounded_time() -> None:
    rows = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7)]
    data, lines = compose_yaml("\n".join(rows))
    assert isinstance(data, dict)
    assert len(lines) < 500_000


def test_a_value_knows_its_line_and_its_type() -> None:
    findings = Findings()
    document = parse_yaml("name: x\nsteps:\n  - wait: true\n    text: |\n      Hello.\n", "f.yaml", findings)
    assert document is not None
    (step,) = document.root().maps("steps")
    assert (step.line("wait"), step.text_line("text"), step.text("text")) == (3, 5, "Hello.")
    assert step.number("wait", 2.0) == 2.0
    assert [str(each) for each in findings.errors] == ["f.yaml:3: 'steps.0.wait' should be float but got bool."]
