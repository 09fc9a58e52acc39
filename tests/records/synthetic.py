"""Many made-up calls, written as the store writes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from callagent.records import CallRecord, FunctionRecord, Spoken, TurnEntry

WORDS = (
    *("parcel", "delivery", "friday", "monday", "address", "street", "number", "tracking", "late", "refund"),
    *("cancel", "order", "change", "agent", "help"),
)
STEPS = ("Welcome", "Tracking number", "Delivery day", "Confirm day", "Anything else")


def synthetic_records(count: int, seed: int = 1, days: int = 30) -> Iterator[CallRecord]:
    chance = random.Random(seed)
    now = datetime.now(UTC)
    for number in range(count):
        started = now - timedelta(seconds=days * 86400 * (1 - (number + 1) / count))
        yield _record(chance, f"c{number:07d}", started)


def _record(chance: random.Random, call_id: str, started: datetime) -> CallRecord:
    record = CallRecord(
        id=call_id,
        project_id="parcels",
        wire=chance.choice(("sip", "twilio")),
        from_number=f"+1555{chance.randrange(10**7):07d}",
        to_number="+15550199",
        started_at=_iso(started),
        in_progress=False,
        total_duration=round(chance.uniform(10, 240), 1),
        end_reason=chance.choices(("agent_hangup", "caller_hangup", "handoff", "error"), (60, 25, 13, 2))[0],
        metrics=[{"name": "PARCEL_FOUND", "value": True}],
    )
    record.ended_at = _iso(started + timedelta(seconds=record.total_duration))
    record.handoff = record.end_reason == "handoff"
    if record.handoff:
        record.handoff_destination, record.handoff_reason = "support", chance.choice(("asked", "no_parcel"))
    record.turns = [_turn(chance, turn) for turn in range(chance.randint(3, 8))]
    record.num_turns = len(record.turns) - 1
    return record


def _turn(chance: random.Random, number: int) -> TurnEntry:
    ended = number * 10.0
    response = chance.lognormvariate(-0.4, 0.5)
    return TurnEntry(
        number=number,
        user_input=" ".join(chance.choices(WORDS, k=6)) if number else "",
        agent_response=" ".join(chance.choices(WORDS, k=12)),
        flow="Parcel service",
        step=STEPS[min(number, 4)],
        latency={"response": response, "endpointing": 0.5, "transcription": 0.2, "barge_in": None},
        instants={
            "speech_started": ended - 2, "speech_ended": ended - 0.5, "turn_ended": ended, "first_token": ended + 0.1,
            "first_audio": ended + response, "playout_ended": ended + response + 3,
        },
        functions=[
            FunctionRecord(number, "look_up_parcel", {"tracking_number": "84276"}, {"found": True}, None, ended, 42.0)
        ],
        spoken=[Spoken(" ".join(chance.choices(WORDS, k=12)), "speech", ended + response, ended + response + 3)],
    )  # fmt: skip


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_data(records: Iterator[CallRecord]) -> list[dict[str, Any]]:
    return [asdict(record) for record in records]
