"""OpenTelemetry: each ended call as a trace, its turns' figures as metrics, over OTLP/HTTP (extra `otel`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from callagent import __version__
from callagent.errors import MissingExtra
from callagent.log import get_logger
from callagent.observability.spans import Record, Span, spans_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram

log = get_logger(__name__)

EXPORT_SECONDS = 5.0
"""For one message to the collector."""
INTERVAL_SECONDS = 15.0
CLOSE_SECONDS = 10.0
NANOSECONDS = 1_000_000_000
STAGES = ("endpointing", "transcription", "token", "functions", "voice", "wire")


class Telemetry:
    """Sends from threads of its own; a collector that is not there costs nothing but what it would have got."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], model: str, *, content: bool) -> None:
        """`endpoint`: of the collector, without `/v1/traces`. Raises `MissingExtra`."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise MissingExtra("setting 'telemetry.endpoint'", "otel") from None
        resource = Resource({"service.name": "callagent", "service.version": __version__})
        given = dict(headers)
        spans = OTLPSpanExporter(f"{endpoint}/v1/traces", headers=given, timeout=EXPORT_SECONDS)
        figures = OTLPMetricExporter(f"{endpoint}/v1/metrics", headers=given, timeout=EXPORT_SECONDS)
        self._tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracing.add_span_processor(BatchSpanProcessor(spans))
        reader = PeriodicExportingMetricReader(figures, export_interval_millis=1000 * INTERVAL_SECONDS)
        self._metering = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracing.get_tracer("callagent", __version__)
        self._figures = _Figures(self._metering.get_meter("callagent", __version__), model)
        self._model = model
        self._content = content

    async def ended(self, record: Record) -> None:
        """Send an ended call, redacted already. Nothing of it runs on the media loop."""
        await asyncio.to_thread(self._send, record)

    async def close(self) -> None:
        """Send what waits; bounded."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(
                    asyncio.to_thread(self._tracing.shutdown), asyncio.to_thread(self._metering.shutdown)
                )
        except TimeoutError:
            log.warning("telemetry_not_sent")

    def _send(self, record: Record) -> None:
        self._trace([spans_of(record, self._model, content=self._content)], None)
        self._figures.ended(record)

    def _trace(self, spans: Sequence[Span], parent: Any) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        for span in spans:
            started = self._tracer.start_span(
                span.name, parent, attributes=span.attributes, start_time=round(span.started * NANOSECONDS)
            )
            if span.error:
                started.set_status(Status(StatusCode.ERROR, span.error[:500]))
                started.set_attribute("error.type", span.error.partition(":")[0][:100])
            self._trace(span.children, set_span_in_context(started))
            started.end(round(span.ended * NANOSECONDS))


class _Figures:
    """Histograms and counters of turns, by the conventions' names where they have one."""

    def __init__(self, meter: Any, model: str) -> None:
        provider, slash, name = model.partition("/")
        self._of_model = {"gen_ai.provider.name": provider, "gen_ai.request.model": name if slash else model}
        self._duration: Histogram = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._tokens: Histogram = meter.create_histogram("gen_ai.client.token.usage", "{token}")
        self._first: Histogram = meter.create_histogram("gen_ai.server.time_to_first_token", "s")
        self._response: Histogram = meter.create_histogram("callagent.turn.response", "s")
        self._stages: Histogram = meter.create_histogram("callagent.turn.stage", "s")
        self._barge_in: Histogram = meter.create_histogram("callagent.turn.barge_in", "s")
        self._events = meter.create_counter("callagent.events")
        self._failures = meter.create_counter("callagent.provider.failures")

    def ended(self, record: Record) -> None:
        self._events.add(1, {"event": "call"})
        self._events.add(record["underruns"], {"event": "underrun"})
        for failure in record["provider_failures"]:
            self._failures.add(1, {"role": failure["role"], "provider": failure["provider"]})
        for turn in record["turns"]:
            self._turn(turn)

    def _turn(self, turn: Record) -> None:
        latency = turn["latency"]
        _observe(self._response, latency.get("response"), {})
        _observe(self._barge_in, latency.get("barge_in"), {})
        for stage in STAGES:
            _observe(self._stages, latency.get(stage), {"stage": stage})
        self._events.add(sum(one["kind"] == "filler" for one in turn["spoken"]), {"event": "filler"})
        resumed = sum(bool(pause["resumed"]) for pause in turn["pauses"])
        self._events.add(resumed, {"event": "false_interruption"})
        for request in turn["requests"]:
            self._request(request)

    def _request(self, request: Record) -> None:
        asked = {"gen_ai.operation.name": "chat", **self._of_model}
        self._duration.record(request["duration_ms"] / 1000, asked)
        for kind in ("input", "output"):
            self._tokens.record(request[f"{kind}_tokens"], {**asked, "gen_ai.token.type": kind})
        if request["first_token_at"] is not None:
            self._first.record(request["first_token_at"] - request["requested_at"], asked)


def _observe(histogram: Histogram, seconds: float | None, attributes: Mapping[str, str]) -> None:
    if seconds is not None:
        histogram.record(seconds, dict(attributes))
