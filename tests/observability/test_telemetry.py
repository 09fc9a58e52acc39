"""Calls as traces: to a collector on loopback that decodes what OTLP over HTTP brought."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import callagent.phone
from callagent.observability.telemetry import CONTENT, Span, make_call_span
from callagent.testing.virtual_time import run
from tests.phone.test_conversations import converse
from tests.test_provider_faults import Cast, WordModel, play

pytest.importorskip("opentelemetry.sdk")
MODEL = "openai/gpt-4.1-mini"


def record_with_model() -> dict[str, Any]:
    """A call whose first model is out; the second answers."""
    return run(play(Cast(models=(WordModel("500"), WordModel())))).record.to_json()


def record_with_function() -> dict[str, Any]:
    script = Path(callagent.phone.__file__).parent / "conversations" / "17_waits_for_something_slow.yaml"
    return run(converse(script))[1].to_json()


def walk(span: Span) -> Iterator[Span]:
    yield span
    for child in span.children:
        yield from walk(child)


def test_a_call_holds_its_turns_and_a_turn_what_was_done_in_it() -> None:
    record = record_with_model()
    call = make_call_span(record, MODEL, content=False)
    assert call.name == "invoke_agent fake"
    assert call.attributes["gen_ai.conversation.id"] == record["id"]
    assert call.attributes["callagent.failed_providers"] == "model/openai/0"
    assert [turn.name for turn in call.children] == ["turn"] * len(record["turns"])
    names = [span.name for span in call.children[1].children]
    assert names[:2] == ["recognize", f"chat {MODEL}"]
    assert "speak" in names
    (chat,) = [span for span in call.children[1].children if span.name.startswith("chat")]
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    assert chat.attributes["gen_ai.request.model"] == "gpt-4.1-mini"
    turn = call.children[1].attributes
    parts = [turn[f"callagent.turn.{name}_seconds"] for name in ("endpointing", "voice", "wire")]
    assert all(isinstance(part, float) and 0 <= part < 2 for part in parts)
    for span in walk(call):
        assert span.started <= span.ended
        assert span.ended <= call.ended + 0.001
    assert not any(name in span.attributes for span in walk(call) for name in (*CONTENT, "callagent.content"))


def test_words_are_on_marked_spans_only() -> None:
    call = make_call_span(record_with_function(), "rules", content=True)
    found = {name: span for span in walk(call) for name in CONTENT if name in span.attributes}
    assert set(found) == set(CONTENT)
    for span in walk(call):
        assert any(name in span.attributes for name in CONTENT) == bool(span.attributes.get("callagent.content"))
    tool = found["gen_ai.tool.call.result"]
    assert (tool.name, tool.attributes["gen_ai.operation.name"]) == ("execute_tool look_up", "execute_tool")
    assert tool.ended - tool.started == pytest.approx(2.5, abs=0.1)
    kinds = {span.attributes.get("callagent.voice.kind") for span in walk(call)}
    assert kinds >= {"filler", "speech"}


@dataclass
class Collector:
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    headers: list[Any] = field(default_factory=list)
    status: int = 200

    async def traces(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.headers.append(request.headers)
        asked = ExportTraceServiceRequest.FromString(await self._body(request))
        for resource in asked.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "callagent"
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response(status=self.status)

    async def figures(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        asked = ExportMetricsServiceRequest.FromString(await self._body(request))
        for resource in asked.resource_metrics:
            self.metrics |= {one.name: one for scope in resource.scope_metrics for one in scope.metrics}
        return web.Response(status=self.status)

    async def _body(self, request: web.Request) -> bytes:
        assert request.content_type == "application/x-protobuf"
        return await request.read()


@asynccontextmanager
async def listening(collector: Collector) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/traces", collector.traces)
    app.router.add_post("/v1/metrics", collector.figures)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def send(collector: Collector, records: list[dict[str, Any]], *, content: bool = False) -> None:
    from callagent.observability import Telemetry

    async with listening(collector) as endpoint:
        telemetry = Telemetry(endpoint, {"authorization": "Bearer secret"}, MODEL, content=content)
        for record in records:
            await telemetry.ended(record)
        await telemetry.close()


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [record_with_model(), record_with_function()]


async def test_a_collector_gets_every_call_as_one_trace(records: list[dict[str, Any]]) -> None:
    collector = Collector()
    await send(collector, records)
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert sorted(root.name for root in roots) == ["invoke_agent fake"] * 2
    assert len({span.trace_id for span in collector.spans}) == 2
    by_id = {span.span_id: span for span in collector.spans}
    for span in collector.spans:
        parent = by_id.get(span.parent_span_id)
        assert parent is None or parent.trace_id == span.trace_id
        expected = {"turn": "invoke_agent fake"}.get(span.name, "turn")
        assert parent is None or parent.name == expected
    kinds = {span.name.split()[0] for span in collector.spans}
    assert kinds == {"invoke_agent", "turn", "recognize", "chat", "execute_tool", "speak"}
    keys = {one.key for span in collector.spans for one in span.attributes}
    assert not keys & {*CONTENT, "callagent.content"}
    assert collector.headers[0]["Authorization"] == "Bearer secret"


async def test_figures_of_turns_are_metrics(records: list[dict[str, Any]]) -> None:
    collector = Collector()
    await send(collector, records)
    names = {
        *("gen_ai.client.operation.duration", "gen_ai.client.token.usage", "callagent.turn.response"),
        *("callagent.turn.stage", "callagent.provider.failures", "callagent.events"),
    }
    assert names <= set(collector.metrics)
    stages = {
        point.attributes[0].value.string_value
        for point in collector.metrics["callagent.turn.stage"].histogram.data_points
    }
    assert stages >= {"endpointing", "transcription", "voice", "wire", "functions"}
    events = {
        point.attributes[0].value.string_value: point.as_int
        for point in collector.metrics["callagent.events"].sum.data_points
    }
    assert events["call"] == 2
    assert events["filler"] >= 1


async def test_words_go_along_where_they_are_wanted(records: list[dict[str, Any]]) -> None:
    collector = Collector()
    await send(collector, records, content=True)
    marked = [span for span in collector.spans if any(one.key == "callagent.content" for one in span.attributes)]
    keys = {one.key for span in marked for one in span.attributes}
    assert set(CONTENT) <= keys
    rest = {one.key for span in collector.spans if span not in marked for one in span.attributes}
    assert not rest & set(CONTENT)


async def test_a_collector_that_is_not_there_costs_nothing_but_time(records: list[dict[str, Any]]) -> None:
    from callagent.observability import Telemetry

    telemetry = Telemetry("http://127.0.0.1:9", {}, MODEL, content=False)
    await telemetry.ended(records[0])
    await telemetry.close()
