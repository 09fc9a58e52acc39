from __future__ import annotations

import argparse
import json
import shutil

import pytest

from callagent.bench.media import (
    GOAL_MICROSECONDS,
    Arrival,
    RtpLoad,
    StreamFigures,
    _remote,
    bench_media,
    main,
    measure,
    reference_figures,
)


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


def arrivals(*late: float, sequence: int = 65534, timestamp: int = 4294967200) -> list[Arrival]:
    """Packets on the grid, each late by so many milliseconds."""
    return [
        Arrival(100 + index * 0.02 + each / 1000, (sequence + index) & 0xFFFF, (timestamp + index * 160) & 0xFFFFFFFF)
        for index, each in enumerate(late)
    ]


def test_deviation_is_measured_from_the_grid_of_the_first_packet() -> None:
    figures = StreamFigures.of(arrivals(0, 1, -2, 0, 5))
    assert figures.deviations == pytest.approx((1, 2, 0, 5), abs=1e-6)
    assert figures.lost == 0


def test_lost_packets_are_counted_and_move_nothing() -> None:
    came = arrivals(0, 0, 0, 3, 0)
    figures = StreamFigures.of([came[0], came[3], came[2], came[3], came[4]])
    assert figures.deviations == pytest.approx((3, 0), abs=1e-6)
    assert figures.lost == 2


def test_a_stream_that_was_never_heard() -> None:
    assert StreamFigures.of([]) == StreamFigures((), 0)


def test_two_loads_hear_each_other() -> None:
    load = RtpLoad("127.0.0.1", 2)
    here, there = load.streams
    here.remote, there.remote = ("127.0.0.1", there.port), ("127.0.0.1", here.port)
    load.run(0.5)
    figures = load.figures()
    load.close()
    assert figures["streams_heard"] == 2
    assert figures["received"] == figures["sent"] > 30
    assert figures["lost"] == 0
    assert {stream["port"] for stream in figures["per_stream"]} == {here.port, there.port}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_reference_in_c_is_built_and_measured() -> None:
    figures = reference_figures(12, 1)
    assert figures is not None
    assert figures["received"] == 12 * 50
    assert figures["lost"] == 0


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--remote", "127.0.0.1:9", "--seconds", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["streams"] == 1


def test_a_command_without_work_and_a_wrong_address_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["load"])
    assert "nothing to do" in capsys.readouterr().err
    assert _remote("[::1]:5004") == ("::1", 5004)
    with pytest.raises(argparse.ArgumentTypeError, match="HOST:PORT"):
        _remote("5004")
