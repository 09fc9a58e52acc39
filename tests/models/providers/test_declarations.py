"""A provider of models is known by what its own file declares, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from callagent.config import load_config
from callagent.models import Declaration, declarations

ROOT = Path(__file__).parents[3]
ALL = list(declarations().values())


def test_every_provider_is_found_in_order() -> None:
    names = list(declarations())
    assert names == sorted(names)
    assert {"anthropic", "gemini", "openai"} <= set(names)


@pytest.mark.parametrize("declared", ALL, ids=lambda one: one.name)
def test_a_provider_stands_in_the_readme_and_in_the_commented_settings(declared: Declaration) -> None:
    assert declared.line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    settings = (ROOT / "deploy" / "callagent.toml").read_text(encoding="utf-8")
    assert declared.form in settings
    assert declared.keys[0] in settings


@pytest.mark.parametrize("declared", ALL, ids=lambda one: one.name)
def test_its_variables_fill_its_settings(declared: Declaration) -> None:
    config = load_config(None, {declared.keys[-1]: "a secret", **dict.fromkeys(declared.environment, "http://place")})
    settings = getattr(config.model.providers, declared.name)
    assert settings.api_key.get_secret_value() == "a secret"
    for setting in declared.environment.values():
        assert getattr(settings, setting) == "http://place"
    both = {key: f"from {key}" for key in declared.keys}
    first = getattr(load_config(None, both).model.providers, declared.name)
    assert first.api_key.get_secret_value() == f"from {declared.keys[0]}"


@pytest.mark.parametrize("declared", ALL, ids=lambda one: one.name)
def test_a_key_is_needed_at_the_provider_s_own_address_only(declared: Declaration) -> None:
    assert declared.needs_key("")
    assert declared.needs_key(declared.base_url)
    assert not declared.needs_key("http://127.0.0.1:8000/v1")


def test_reading_the_declarations_opens_no_client() -> None:
    program = (
        "import sys; from callagent.models import declarations; "
        "assert declarations(); print([name for name in ['aiohttp', 'numpy', 'msgspec'] if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
