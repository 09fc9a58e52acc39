"""Records as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callagent.log import plain


def format_calls(calls: Sequence[dict[str, Any]]) -> str:
    """One line a call."""
    if not calls:
        return "no calls"
    lines = [f"{'ID':<14}{'STARTED':<21}{'FROM':<17}{'SECONDS':>8}  {'TURNS':>5}  ENDED"]
    for call in calls:
        ended = call["end_reason"] or "in progress"
        if call["handoff_destination"]:
            ended += f" to {call['handoff_destination']}"
        seconds = f"{call['total_duration']:.1f}" if call["total_duration"] is not None else ""
        lines.append(
            f"{call['id'][:12]:<14}{call['started_at'][:19]:<21}{call['from_number'] or 'withheld':<17}"
            f"{seconds:>8}  {call['num_turns'] or 0:>5}  {ended}"
        )
    return "\n".join(plain(line) for line in lines)


def format_call(record: dict[str, Any]) -> str:
    """The call as a story: who said what when, functions with their times, metrics, how it ended."""
    lines = [
        f"call {record['id']}  {record['from_number'] or 'withheld'} -> {record['to_number']}  over {record['wire']}",
        f"started {record['started_at']}, {record['total_duration']:.1f} s, ended by {record['end_reason']}",
        *(f"  {name}: {value}" for name, value in record.get("hang_up_headers", {}).items()),
        "",
    ]
    for turn in record["turns"]:
        lines += _turn_lines(turn)
    if record["transfers"]:
        lines += ["", "transfers"]
        lines += [
            f"  {one['target']} by {one['method']}: {one['status']} {one['detail']}" for one in record["transfers"]
        ]
    lines += ["", "metrics"]
    lines += [f"  {metric['name']} = {metric['value']}" for metric in record["metrics"]] or ["  none"]
    if record["errors"]:
        lines += ["", "errors"]
        lines += [f"  {error['at']:6.2f}  {error['what']}: {error['detail']}" for error in record["errors"]]
    if reached := record.get("limits_reached"):
        lines += ["", "limits reached"]
        lines += [f"  {one['at']:6.2f}  {one['limit']}: {one['detail']}" for one in reached]
    if record["recording"]:
        lines += ["", f"recording {record['recording']}"]
    return "\n".join(plain(line) for line in lines)


def _turn_lines(turn: dict[str, Any]) -> list[str]:
    """A turn's events in the order of their times."""
    events: list[tuple[float, str]] = []
    said = turn["user_input"] or turn["user_input_dtmf"]
    heard_at = turn["instants"].get("turn_ended")
    if said or turn["is_silence"]:
        events.append((heard_at or 0.0, f"caller  {said or '(silence)'}{_latency(turn)}"))
    for one in turn["functions"]:
        outcome = f"error: {one['error']}" if one["error"] else f"{one['duration_ms']:.0f} ms"
        events.append((one["started_at"], f"        {one['name']}({_arguments(one['arguments'])})  {outcome}"))
    for spoken in turn["spoken"]:
        who = "filler" if spoken["kind"] == "filler" else "agent "
        cut = "  [interrupted]" if spoken["interrupted"] else ""
        events.append(
            (spoken["started_at"], f"{who}  {spoken['heard'] if spoken['interrupted'] else spoken['text']}{cut}")
        )
    return [f"{at:7.2f}  {text}" for at, text in sorted(events, key=lambda event: event[0])]


def _latency(turn: dict[str, Any]) -> str:
    response = turn["latency"].get("response")
    return f"   (answered after {response:.2f} s)" if response is not None else ""


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
