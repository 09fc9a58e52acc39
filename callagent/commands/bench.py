"""`callagent bench`: the performance figures of this machine, a benchmark for each part of a call."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.arguments import (
    add_command,
    add_config,
    add_project,
    config_of,
    log_to_stderr,
    parse_count,
    parse_seconds,
)

if TYPE_CHECKING:
    from callagent.commands.arguments import Commands


_BENCH_EXAMPLES = """\
  callagent bench calls --calls 50 --seconds 30
  callagent bench media --calls 100
  callagent bench signalling --rate 100
  callagent bench conversation --wire twilio --json
  callagent bench speech --corpus recordings/
  callagent bench models --model openai/gpt-4.1-mini"""


def add_bench(commands: Commands) -> None:
    parser = add_command(commands, "bench", "the performance figures of this machine", _bench_calls, _BENCH_EXAMPLES)
    # docs/benchmarks.md says what each benchmark measures, and has figures of known machines.
    benches = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    calls = benches.add_parser("calls", help="many calls at once: how evenly audio leaves, CPU and memory per call")
    calls.add_argument("--calls", type=parse_count, default=50, help="calls at once (default: 50)")
    calls.add_argument("--seconds", type=parse_seconds, default=30.0, help="how long each lasts (default: 30)")
    calls.add_argument(
        "--speech", choices=("script", "local"), default="script", help="scripted or embedded speech (default: script)"
    )
    calls.add_argument("--spin", action="store_true", help="one call's function spins at 100 %% CPU meanwhile")
    calls.add_argument("--json", action="store_true", help="one JSON object")
    calls.set_defaults(run=_bench_calls)
    media = benches.add_parser("media", help="what a call's media costs per frame, compared with an echo in C")
    media.add_argument("--calls", type=parse_count, default=100, help="calls at once (default: 100)")
    media.add_argument(
        "--seconds", type=parse_seconds, default=5.0, help="how long each of nine runs lasts (default: 5)"
    )
    media.add_argument("--json", action="store_true", help="one JSON object")
    media.set_defaults(run=_bench_media)
    conversation = benches.add_parser("conversation", help="how soon filler, barge-in and answer are on the wire")
    conversation.add_argument("--trials", type=parse_count, help="questions asked (default: 200, embedded 40)")
    conversation.add_argument(
        "--wire", choices=("sip", "twilio"), default="sip", help="RTP, or a media stream (default: sip)"
    )
    conversation.add_argument("--callers", type=Path, metavar="DIR", help="WAV files of what callers say")
    conversation.add_argument(
        "--embedded", action="store_true", help="measure end of speech to first audio with embedded speech"
    )
    conversation.add_argument("--json", action="store_true", help="one JSON object")
    conversation.set_defaults(run=_bench_conversation)
    engine = benches.add_parser("engine", help="the flow engine's own time in a turn and for a function call")
    add_project(engine)
    engine.add_argument("--turns", type=parse_count, default=500, help="turns and function calls (default: 500)")
    engine.add_argument("--json", action="store_true", help="one JSON object")
    engine.set_defaults(run=_bench_engine)
    _add_bench_signalling(benches)
    _add_bench_speech(benches)
    _add_bench_models(benches)


def _add_bench_signalling(benches: Commands) -> None:
    signalling = benches.add_parser(
        "signalling", help="what an INVITE costs, and how fast short calls are set up while others run"
    )
    signalling.add_argument("--calls", type=parse_count, default=50, help="calls that run all the time (default: 50)")
    signalling.add_argument("--rate", type=float, default=100.0, help="short calls begun each second (default: 100)")
    signalling.add_argument("--seconds", type=parse_seconds, default=20.0, help="how long to measure (default: 20)")
    signalling.add_argument("--json", action="store_true", help="one JSON object")
    signalling.set_defaults(run=_bench_signalling)


def _bench_signalling(options: argparse.Namespace) -> int:
    from callagent.bench import bench_signalling

    return bench_signalling(options)


def _add_bench_speech(benches: Commands) -> None:
    speech = benches.add_parser("speech", help="word error rate of a recogniser on a folder of recordings")
    speech.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="DIR",
        help="8 kHz WAV files and manifest.csv with the columns file, text, category, kind",
    )
    speech.add_argument("--recognizer", default="local", metavar="NAME", help="which recogniser (default: local)")
    speech.add_argument("--limit", type=parse_count, metavar="N", help="only the first N recordings")
    speech.add_argument("--details", type=Path, metavar="FILE", help="write each transcript, as JSON Lines")
    speech.add_argument("--json", action="store_true", help="one JSON object")
    speech.set_defaults(run=_bench_speech)


def _add_bench_models(benches: Commands) -> None:
    models = benches.add_parser("models", help="a language model's speed, and whether it chooses the right function")
    add_config(models)
    models.add_argument("--model", metavar="NAME", help="which model (default: as configured)")
    models.add_argument(
        "--utterances",
        type=Path,
        metavar="FILE",
        help="utterances with the expected calls (default: 60 built-in ones)",
    )
    models.add_argument("--limit", type=parse_count, metavar="N", help="only the first N utterances")
    models.add_argument("--details", type=Path, metavar="FILE", help="write every answer, as JSON Lines")
    models.add_argument("--json", action="store_true", help="one JSON object")
    models.set_defaults(run=_bench_models)


def _bench_calls(options: argparse.Namespace) -> int:
    from callagent.bench import bench_calls

    return bench_calls(options)


def _bench_engine(options: argparse.Namespace) -> int:
    from callagent.bench import bench_engine

    log_to_stderr()
    return bench_engine(options)


def _bench_media(options: argparse.Namespace) -> int:
    from callagent.bench import bench_media

    return bench_media(options)


def _bench_conversation(options: argparse.Namespace) -> int:
    from callagent.bench import bench_conversation

    return bench_conversation(options)


def _bench_models(options: argparse.Namespace) -> int:
    from callagent.bench import bench_models

    log_to_stderr()
    return bench_models(config_of(options), options)


def _bench_speech(options: argparse.Namespace) -> int:
    from callagent.bench import bench_speech

    return bench_speech(options)
