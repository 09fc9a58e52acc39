from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.records import CallRecord, RequestRecord, Store, TurnEntry
from callagent.records.privacy import hide_personal_data
from callagent.records.query import CallFilter
from callagent.records.reader import Reader, ReadingProcess, SqliteDatabase, StoreUnavailable
from tests.records.synthetic import synthetic_records


async def fill(path: Path, records: list[CallRecord], *, metrics: bool = True) -> None:
    store = Store(path)

    async def put(some: list[CallRecord]) -> None:
        for record in some:
            await store.ended(record)
            if metrics:
                await store.metric(record.id, 1, "PARCEL_FOUND", True)
                await store.metric(record.id, 2, "DAYS", len(record.turns))

    await asyncio.gather(*(put(records[start::200]) for start in range(200)))
    await store.close()


@asynccontextmanager
async def reader_of(path: Path) -> AsyncIterator[Reader]:
    process = ReadingProcess()
    reader = Reader(SqliteDatabase(path, process), process)
    try:
        yield reader
    finally:
        await reader.close()


async def test_pages_follow_each_other_without_gap_or_repetition(tmp_path: Path) -> None:
    records = list(synthetic_records(57))
    await fill(tmp_path / "c.db", records)
    async with reader_of(tmp_path / "c.db") as reader:
        seen: list[str] = []
        cursor = ""
        while True:
            page = await reader.calls(CallFilter(), limit=10, cursor=cursor)
            assert page.total == 57
            seen += [call["id"] for call in page.calls]
            cursor = page.next_cursor
            if not cursor:
                break
        assert seen == [record.id for record in reversed(records)]
        with pytest.raises(ValueError, match="cursor"):
            await reader.calls(CallFilter(), cursor="!")


async def test_filters_and_search_find_what_they_say(tmp_path: Path) -> None:
    records = list(synthetic_records(40))
    records[7].turns.append(TurnEntry(number=99, user_input="My zebra's crossing, Ωmega"))
    await fill(tmp_path / "c.db", records)
    async with reader_of(tmp_path / "c.db") as reader:

        async def ids(**asked: object) -> list[str]:
            return [call["id"] for call in (await reader.calls(CallFilter(**asked), limit=100)).calls]  # type: ignore[arg-type]

        assert await ids(search="zebra cross") == [records[7].id]
        assert await ids(search="ωmega") == [records[7].id]
        assert await ids(search='zebra" OR xyzzy --') == []
        assert await ids(search="'\"*;") == []
        assert await ids(search=(records[3].from_number or "")[:9]) == [
            one.id
            for one in reversed(records)
            if (one.from_number or "").startswith((records[3].from_number or "")[:9])
        ]
        assert set(await ids(handoff=True)) == {one.id for one in records if one.handoff}
        assert set(await ids(end_reason="error")) == {one.id for one in records if one.end_reason == "error"}
        assert await ids(start_time=records[30].started_at) == [one.id for one in reversed(records[30:])]
        assert await ids(in_progress=True) == []
        assert await ids(from_number=records[5].from_number) == [records[5].id]


async def test_who_may_not_see_personal_data_sees_neither_number_nor_words(tmp_path: Path) -> None:
    record = next(synthetic_records(1))
    record.from_number = "+15551234567"
    record.turns[1].user_input = "SECRETWORD"
    record.turns[1].functions[0].arguments = {"SECRETKEY": "SECRETVALUE"}
    record.state = {"name": "SECRETNAME"}
    await fill(tmp_path / "c.db", [record])
    async with reader_of(tmp_path / "c.db") as reader:
        whole = await reader.call(record.id)
        assert whole is not None
        assert "SECRETWORD" in whole
        hidden = await reader.call(record.id, personal=False)
        assert hidden is not None
        assert "SECRET" not in hidden
        assert json.loads(hidden)["from_number"] == "•••67"
        assert json.loads(hidden)["turns"][1]["functions"][0]["name"] == "look_up_parcel"
        page = await reader.calls(CallFilter(), personal=False)
        assert page.calls[0]["from_number"] == "•••67"


def every_text_secret(value: object) -> object:
    """The same shape with SECRET as every text, also in lists and dictionaries that are empty so far."""
    match value:
        case dict():
            return {name: every_text_secret(one) for name, one in value.items()} or {"SECRETKEY": "SECRET"}
        case list():
            return [every_text_secret(one) for one in value] or [{"SECRETKEY": "SECRET"}, "SECRET"]
        case str() | None:
            return "SECRET"
    return value


def test_of_a_record_only_names_that_are_known_to_be_harmless_are_shown() -> None:
    record = next(synthetic_records(1))
    record.messages = [{"kind": "sms", "to": "SECRET", "text": "SECRET", "subject": "SECRET", "status": "sent"}]
    record.signalling = [{"at": "", "sent": True, "peer": "SECRET", "line": "SECRET", "text": "SECRET"}]
    record.provider_failures = [{"role": "voice", "provider": "p", "error": "SECRET", "at": 1.0}]
    record.turns[1].requests = [RequestRecord("f", "s", 0.0, 1.0, calls=[{"name": "x", "arguments": {"SECRET": 1}}])]
    shown = hide_personal_data(every_text_secret(record.to_json()))
    revealing = {"turns", "metrics", "messages", "digits", "transfers", "errors", "provider_failures", "signalling"}
    for name in revealing:
        assert not {"user_input", "text", "to", "SECRETKEY", "heard", "error", "detail", "line", "peer", "value"} & {
            key for key, text in named_texts(shown[name]) if "SECRET" in text
        }, name
    assert (shown["state"], shown["entities"]) == ({}, {})


def named_texts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            for key, one in value.items():
                yield from named_texts(one, key)
        case list():
            for one in value:
                yield from named_texts(one, name)
        case str():
            yield name, value


async def test_numbers_of_people_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    record = next(synthetic_records(1))
    record.direction, record.to_number, record.from_number = "outbound", "+15557654321", "+15550199"
    record.handoff_destination = "+442079460123"
    record.transfers = [{"target": "+442079460123", "uri": "sip:+442079460123@x", "method": "refer", "detail": ""}]
    await fill(tmp_path / "c.db", [record])
    async with reader_of(tmp_path / "c.db") as reader:
        texts = [await reader.call(record.id, personal=False) or ""]
        (row,) = (await reader.calls(CallFilter(), personal=False)).calls
        texts.append(json.dumps(row))
    assert row["to_number"] == "•••21"
    for text in texts:
        assert "7654321" not in text
        assert "2079460123" not in text


async def test_the_overview_counts_what_happened(tmp_path: Path) -> None:
    records = list(synthetic_records(60, days=5))
    await fill(tmp_path / "c.db", records)
    async with reader_of(tmp_path / "c.db") as reader:
        figures = await reader.overview(30)
        assert sum(day["calls"] for day in figures["days"]) == 60
        assert sum(day["handoffs"] for day in figures["days"]) == sum(one.handoff for one in records)
        assert {one["reason"]: one["calls"] for one in figures["reasons"]}["agent_hangup"] == sum(
            one.end_reason == "agent_hangup" for one in records
        )
        found = {metric["name"]: metric for metric in figures["metrics"]}
        assert found["PARCEL_FOUND"]["values"] == [{"value": True, "written": 60}]
        assert found["DAYS"]["mean"] == pytest.approx(statistics.mean(len(one.turns) for one in records), abs=0.01)
        delays = [turn.latency["response"] or 0.0 for one in records for turn in one.turns]
        assert figures["response"]["p50"] == pytest.approx(1000 * statistics.median(delays), abs=60)
        edges = {(one["previous"], one["position"]): one["turns"] for one in await reader.traffic("parcels", 30)}
        assert edges["", "Parcel service/Welcome"] == 60


async def test_a_killed_reading_process_is_replaced(tmp_path: Path) -> None:
    await fill(tmp_path / "c.db", list(synthetic_records(3)))
    async with reader_of(tmp_path / "c.db") as reader:
        await reader.calls(CallFilter())
        pool = reader._process._pool
        assert pool is not None
        for process in pool._processes.values():
            process.kill()
        with pytest.raises(StoreUnavailable):
            await reader.calls(CallFilter())
        assert (await reader.calls(CallFilter())).total == 3


async def p95(ask: Callable[[], Awaitable[object]], times: int = 20) -> float:
    await ask()
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        await ask()
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[int(0.95 * times)] * 1000


@pytest.mark.acceptance("storage")
@pytest.mark.parametrize(("count", "bound_ms"), [(1_000, 200), (100_000, 500)])
async def test_lists_search_and_overview_stay_quick(tmp_path: Path, count: int, bound_ms: int) -> None:
    await fill(tmp_path / "c.db", list(synthetic_records(count)))
    async with reader_of(tmp_path / "c.db") as reader:
        figures = {
            "list": await p95(lambda: reader.calls(CallFilter())),
            "filtered": await p95(lambda: reader.calls(CallFilter(end_reason="error", wire="sip"))),
            "search_common": await p95(lambda: reader.calls(CallFilter(search="parcel friday"))),
            "search_filtered": await p95(lambda: reader.calls(CallFilter(search="parcel friday", wire="sip"))),
            "search_rare": await p95(lambda: reader.calls(CallFilter(search="15551"))),
            "overview": await p95(lambda: reader.overview(30)),
            "traffic": await p95(lambda: reader.traffic("parcels", 30)),
        }
    print(count, {name: round(value, 1) for name, value in figures.items()})  # noqa: T201
    assert max(figures.values()) <= bound_ms
