"""Every reader of the network against hypothesis, and against a search that follows the branches (acceptance)."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS, TooSlow, run, seeds

ROOT = Path(__file__).parents[2]
SECONDS = 60


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=2000))
@settings(max_examples=100)
def test_any_octets_are_borne(name: str, data: bytes) -> None:
    run(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
@given(seed=st.integers(0, 1 << 32), cuts=st.integers(1, 8))
@settings(max_examples=150)
def test_damaged_examples_are_borne(name: str, seed: int, cuts: int) -> None:
    chance = random.Random(seed)
    data = chance.choice(seeds(name))
    for _ in range(cuts):
        at, length = chance.randrange(len(data)), chance.randrange(4)
        data = data[:at] + chance.randbytes(chance.randrange(4)) + data[at + length :] or b"\0"
    run(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_the_examples_themselves_are_borne(name: str) -> None:
    for data in seeds(name):
        run(TARGETS[name], data)


def test_a_slow_input_is_a_finding() -> None:
    with pytest.raises(TooSlow):
        run(lambda data: sum(number * number for number in range(3_000_000)) and None, b"")


@pytest.mark.acceptance("fuzz")
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (extra `fuzz`)")
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute_of_search_finds_nothing(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", name, "--seconds", str(SECONDS)],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS * 4,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None, done.stderr[-2000:]
    assert int(runs[1]) > 1000
