from __future__ import annotations

from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.models import PerCallModel, open_model
from callagent.models.rules import RulesModel
from callagent.models.scripted import ScriptedModel


def test_rules_are_embedded() -> None:
    assert isinstance(open_model("rules"), RulesModel)


def test_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- text: hello\n")
    model = open_model(f"script:{tmp_path / 'a.yaml'}")
    assert isinstance(model, ScriptedModel)
    assert isinstance(model, PerCallModel)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rule", "did you mean 'rules'"),
        ("scripts:a.yaml", "did you mean 'script:FILE'"),
        ("script:", "did you mean 'script:FILE'"),
        ("OpenAI/gpt", "did you mean 'openai/MODEL'"),
        ("openai", "did you mean 'openai/MODEL'"),
        ("rules/x", "did you mean 'rules'"),
        ("", "known: rules, embedded, script:FILE, openai/MODEL"),
        ("wizard", "known: rules, embedded, script:FILE, openai/MODEL"),
    ],
)
def test_unknown_name_is_answered_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        open_model(name)
