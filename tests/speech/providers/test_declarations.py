"""A provider is known by what its own file declares, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from callagent.config import load_config
from callagent.speech.providers import Declaration, declarations

ROOT = Path(__file__).parents[3]
ALL = list(declarations().values())


def test_every_provider_is_found_in_order() -> None:
    names = list(declarations())
    assert names == sorted(names)
    assert {"deepgram", "openai", "openai-realtime", "piper"} <= set(names)


@pytest.mark.parametrize("declared", ALL, ids=lambda one: one.name)
def test_a_provider_can_do_something_and_stands_in_the_readme(declared: Declaration) -> None:
    assert declared.recognizer or declared.voice
    assert declared.documentation_line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("declared", [one for one in ALL if one.key], ids=lambda one: one.name)
def test_its_variables_fill_its_settings(declared: Declaration) -> None:
    config = load_config(None, {declared.key: "a secret", **dict.fromkeys(declared.environment, "place")})
    settings = getattr(config.speech.providers, declared.section)
    assert settings.api_key.get_secret_value() == "a secret"
    for setting, form in declared.environment.values():
        assert getattr(settings, setting) == form.format("place")


def test_reading_the_declarations_opens_no_client() -> None:
    heavy = ["aiohttp", "numpy", "soxr", "websockets"]
    program = (
        "import sys; from callagent.speech.providers import declarations; "
        f"assert declarations(); print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
