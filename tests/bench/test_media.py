from __future__ import annotations

import argparse
import json
import shutil

import pytest

from callagent.bench.media import GOAL_MICROSECONDS, bench_media, measure


@pytest.fixture
def few() -> argparse.Namespace:
    return argparse.Namespace(calls=4, seconds=1.0, json=True)


def test_a_few_calls_are_measured_beside_the_echo_in_c() -> None:
    result = measure(4, 1.0, rounds=1)
    assert result["heard_share"] > 0.8
    assert result["plain_us"] > 1
    assert result["resampling_us"] > 1
    if shutil.which("cc") or shutil.which("gcc"):
        assert 0 < result["c_echo_us"] < result["resampling_us"]
    else:
        assert result["c_echo_us"] is None


def test_the_exit_status_says_whether_the_goal_is_met(
    few: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callagent.bench.media.ROUNDS", 1)
    status = bench_media(few)
    result = json.loads(capsys.readouterr().out)
    assert result["goal_us"] == GOAL_MICROSECONDS
    assert result["met"] is (status == 0)
    few.json = False
    bench_media(few)
    assert "echo in C" in capsys.readouterr().out
