from __future__ import annotations

from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.models import Delta, LanguageModel, ModelNames, ModelSettings, NamedModels, PerCallModel, open_model
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
        ("", "known: rules, embedded, script:FILE, functiongemma/ENGINE, anthropic/MODEL"),
        ("wizard", "known: .*, gemini/MODEL, openai/MODEL$"),
    ],
)
def test_unknown_name_is_answered_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        open_model(name)


async def ask(model: LanguageModel, name: str) -> list[Delta]:
    return [delta async for delta in model.stream([{"role": "user", "content": "Hi"}], (), ModelSettings(name))]


def test_a_listed_name_is_ours_and_any_other_that_of_the_star() -> None:
    names = ModelNames({"raven-3": "openai/large", "*": "rules"})
    assert names.get("raven-3", "") == "openai/large"
    assert names.get("polywhirl-3-5", "") == "rules"


@pytest.mark.parametrize("name", ["", "None"])
def test_a_step_that_names_no_model_gets_the_configured_one(name: str) -> None:
    assert ModelNames({"*": "rules"}).get(name, "configured") == "configured"


def test_without_a_star_other_names_are_the_configured_model_and_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ModelNames({})
    assert [names.get("raven-3", "") for _ in range(3)] == ["", "", ""]
    assert capsys.readouterr().out.count("model_name_not_listed") <= 1


async def test_a_named_model_answers_in_place_of_the_configured_one() -> None:
    models = NamedModels(
        ScriptedModel.from_entries({"text": "a"}, {"text": "b"}),
        {"openai/large": ScriptedModel.from_entries({"text": "c"})},
    )
    assert [await ask(models, name) for name in ("", "openai/large", "its-own")] == [
        [Delta("a")], [Delta("c")], [Delta("b")]
    ]  # fmt: skip


async def test_every_call_has_its_own_view_of_every_model() -> None:
    models = NamedModels(ScriptedModel.from_entries({"text": "a"}), {"x": ScriptedModel.from_entries({"text": "b"})})
    assert isinstance(models, PerCallModel)
    for _ in range(2):
        view = models.for_call()
        assert await ask(view, "") + await ask(view, "x") == [Delta("a"), Delta("b")]
