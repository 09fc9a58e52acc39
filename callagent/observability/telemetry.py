"""OpenTelemetry: each ended call as a trace, and its turns' figures as metrics, over OTLP/HTTP (extra `otel`).

The span of a call contains a span for each turn, and that of a turn the spans of its recognition, model requests,
functions and utterances. Names follow OpenTelemetry's conventions for generative AI (`gen_ai.*`); others are
`callagent.*`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from callagent import __version__
from callagent.errors import MissingExtra
from callagent.json_values import JsonObject
from callagent.log import get_logger
from callagent.records import CallRecord, FunctionRecord, RequestRecord, TurnEntry

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, Meter

log = get_logger(__name__)

EXPORT_SECONDS = 5.0
"""Deadline of one message to the collector."""
INTERVAL_SECONDS = 15.0
"""Time between two exports of the metrics."""
CLOSE_SECONDS = 10.0
"""Deadline for sending what still waits when the server stops."""
NANOSECONDS = 1_000_000_000
# Parts of a turn's response time, as the record's `latency` names them.
STAGES = ("endpointing", "transcription", "token", "functions", "voice", "wire")

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Attribute]

CONTENT: Final = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    "callagent.voice.text",
)
"""Attributes that hold words of people. Spans with one also have `callagent.content`, by which to filter them."""


@dataclass(slots=True)
class Span:
    """A span before it is sent to OpenTelemetry. Instants are seconds of Unix time."""

    name: str
    started: float
    ended: float
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    children: list[Span] = field(default_factory=list)


def make_call_span(stored: JsonObject, model: str, *, content: bool) -> Span:
    """Return the span of a call, which contains those of its turns.

    Args:
        stored: the call's record, redacted.
        model: the language model as the settings name it.
        content: whether the spans contain the words of callers and agents.
    """
    record = CallRecord.from_json(stored)
    began = datetime.fromisoformat(record.started_at).timestamp()
    ended = began + record.total_duration
    call = Span(f"invoke_agent {record.project_id}", began, ended, _call_attributes(record))
    # After an error the agent may have gone on: the span has failed only if the error ended the call.
    if record.end_reason == "error":
        call.error = ", ".join(dict.fromkeys(error["what"] for error in record.errors)) or "error"
    call.children = [_turn_span(turn, record, began, ended) for turn in record.turns]
    for turn, span in zip(record.turns, call.children, strict=True):
        span.children = list(_parts_of_turn(turn, began, model))
        if content:
            _add_content(span, turn)
        else:
            _hide_errors(span)
    return call


def _call_attributes(record: CallRecord) -> Attributes:
    failures = record.provider_failures
    return _without_empty(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": record.project_id,
            "gen_ai.conversation.id": record.id,
            "callagent.wire": record.wire,
            "callagent.direction": record.direction,
            "callagent.end_reason": record.end_reason,
            "callagent.turns": record.num_turns,
            "callagent.underruns": record.underruns,
            "callagent.provider_failures": len(failures),
            "callagent.failed_providers": ",".join(sorted({f"{one['role']}/{one['provider']}" for one in failures})),
        }
    )


def _turn_span(turn: TurnEntry, record: CallRecord, began: float, ended: float) -> Span:
    instants = [at for at in turn.instants.values() if at is not None]
    spoken = [at for one in turn.spoken for at in (one.started_at, one.ended_at) if at is not None]
    times = instants + spoken
    attributes: Attributes = {
        "gen_ai.conversation.id": record.id,
        "callagent.turn.number": turn.number,
        "callagent.turn.barge_in": turn.barge_in,
        "callagent.turn.silence": turn.is_silence,
        "callagent.turn.fillers": sum(one.kind == "filler" for one in turn.spoken),
        "callagent.turn.false_interruptions": sum(bool(pause["resumed"]) for pause in turn.pauses),
    }
    latency = {f"callagent.turn.{name}_seconds": seconds for name, seconds in turn.latency.items()}
    position = {"callagent.flow": turn.flow, "callagent.step": turn.step}
    span = Span("turn", began + min(times, default=0.0), began + max(times, default=0.0))
    # The record may let a turn that was cut at the call's end last longer than the call; its span must not.
    span.ended = max(span.started, min(span.ended, ended))
    span.attributes = {**attributes, **_without_empty(latency), **_without_empty(position)}
    return span


def _parts_of_turn(turn: TurnEntry, began: float, model: str) -> Iterator[Span]:
    instants = turn.instants
    # A recogniser listens all the time; its span is the part for this turn, from the first sound to the transcript.
    speech_at, transcript_at = instants.get("speech_started"), instants.get("transcript_ready")
    if speech_at is not None and transcript_at is not None:
        yield Span("recognize", began + speech_at, began + transcript_at, {"callagent.role": "recognizer"})
    for request in turn.requests:
        yield _model_span(request, began, model)
    for function in turn.functions:
        yield _function_span(function, began)
    for number, spoken in enumerate(turn.spoken):
        # The record says only for the first utterance when it was requested from the voice.
        requested_at = instants.get("voice_asked") if not number else None
        started = spoken.started_at if requested_at is None else requested_at
        ended = spoken.started_at if spoken.ended_at is None else spoken.ended_at
        attributes: Attributes = {
            "callagent.role": "voice",
            "callagent.voice.kind": spoken.kind,
            "callagent.voice.interrupted": spoken.interrupted,
        }
        yield Span("speak", began + started, began + max(started, ended), attributes)


def _model_span(request: RequestRecord, began: float, model: str) -> Span:
    first = request.first_token_at
    attributes = {
        "gen_ai.operation.name": "chat",
        **_model_attributes(model),
        "gen_ai.usage.input_tokens": request.input_tokens,
        "gen_ai.usage.output_tokens": request.output_tokens,
        "callagent.role": "model",
        "gen_ai.server.time_to_first_token": None if first is None else round(first - request.requested_at, 3),
    }
    started = began + request.requested_at
    span = Span(f"chat {model}", started, started + request.duration_ms / 1000, _without_empty(attributes))
    span.error = request.error
    return span


def _model_attributes(model: str) -> dict[str, str]:
    """Return the attributes of a model that the settings name as `PROVIDER/MODEL` or by one word."""
    provider, slash, name = model.partition("/")
    return {"gen_ai.provider.name": provider, "gen_ai.request.model": name if slash else model}


def _function_span(function: FunctionRecord, began: float) -> Span:
    started = began + function.started_at
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": function.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": str(function.number),
        "callagent.role": "function",
    }
    name = f"execute_tool {function.name}"
    return Span(name, started, started + function.duration_ms / 1000, attributes, function.error)


def _add_content(span: Span, turn: TurnEntry) -> None:
    """Add the words of caller, agent and functions to the spans of a turn."""
    if words := turn.user_input or turn.user_input_dtmf:
        _set_content(span, "gen_ai.input.messages", _messages("user", words))
    if turn.agent_response:
        _set_content(span, "gen_ai.output.messages", _messages("assistant", turn.agent_response))
    # The spans of functions and utterances were made from the same lists, so they stand in the same order.
    functions, spoken = iter(turn.functions), iter(turn.spoken)
    for child in span.children:
        if child.attributes.get("callagent.role") == "function":
            function = next(functions)
            _set_content(child, "gen_ai.tool.call.arguments", _json(function.arguments))
            _set_content(child, "gen_ai.tool.call.result", _json(function.result))
        elif child.attributes.get("callagent.role") == "voice":
            _set_content(child, "callagent.voice.text", next(spoken).text)


def _hide_errors(span: Span) -> None:
    """Cut each error to its kind, the part before the colon: the rest may quote somebody."""
    for child in span.children:
        child.error = child.error and child.error.partition(":")[0][:100]


def _set_content(span: Span, name: str, text: str) -> None:
    span.attributes[name] = text
    span.attributes["callagent.content"] = True


def _messages(role: str, text: str) -> str:
    return _json([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _without_empty(attributes: Mapping[str, Attribute | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None and value != ""}


class Telemetry:
    """Sends ended calls to the collector, in threads. While it cannot be reached, spans and figures are lost."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], model: str, *, content: bool) -> None:
        """`endpoint` is the collector's URL without `/v1/traces`. Raises `MissingExtra`."""
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
        http_headers = dict(headers)
        spans = OTLPSpanExporter(f"{endpoint}/v1/traces", headers=http_headers, timeout=EXPORT_SECONDS)
        figures = OTLPMetricExporter(f"{endpoint}/v1/metrics", headers=http_headers, timeout=EXPORT_SECONDS)
        # `close` shuts the providers down within a deadline, in place of the library at the interpreter's exit.
        self._tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracing.add_span_processor(BatchSpanProcessor(spans))
        reader = PeriodicExportingMetricReader(figures, export_interval_millis=1000 * INTERVAL_SECONDS)
        self._metering = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = self._tracing.get_tracer("callagent", __version__)
        self._figures = _Figures(self._metering.get_meter("callagent", __version__), model)
        self._model = model
        self._content = content

    async def ended(self, record: JsonObject) -> None:
        """Send an ended call; its record is redacted already. The work is done in a thread, not on the event loop."""
        await asyncio.to_thread(self._send, record)

    async def close(self) -> None:
        """Send waiting spans and figures, for at most `CLOSE_SECONDS`; those that are left are lost."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(
                    asyncio.to_thread(self._tracing.shutdown), asyncio.to_thread(self._metering.shutdown)
                )
        except TimeoutError:
            log.warning("telemetry_not_sent")

    def _send(self, record: JsonObject) -> None:
        self._trace([make_call_span(record, self._model, content=self._content)], None)
        self._figures.count(CallRecord.from_json(record))

    def _trace(self, spans: Sequence[Span], parent: Context | None) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        for span in spans:
            # The call is over, so the times are given: by default a span starts when it is made.
            otel_span = self._tracer.start_span(
                span.name, parent, attributes=span.attributes, start_time=round(span.started * NANOSECONDS)
            )
            if span.error:
                otel_span.set_status(Status(StatusCode.ERROR, span.error[:500]))
                otel_span.set_attribute("error.type", span.error.partition(":")[0][:100])
            # Children are made before their parent ends; the context names the parent.
            self._trace(span.children, set_span_in_context(otel_span))
            otel_span.end(round(span.ended * NANOSECONDS))


class _Figures:
    """Histograms and counters of turns, under OpenTelemetry's own names where it has them."""

    def __init__(self, meter: Meter, model: str) -> None:
        self._attributes_of_model = _model_attributes(model)
        self._duration: Histogram = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._tokens: Histogram = meter.create_histogram("gen_ai.client.token.usage", "{token}")
        self._first_token: Histogram = meter.create_histogram("gen_ai.server.time_to_first_token", "s")
        self._response: Histogram = meter.create_histogram("callagent.turn.response", "s")
        self._stages: Histogram = meter.create_histogram("callagent.turn.stage", "s")
        self._barge_in: Histogram = meter.create_histogram("callagent.turn.barge_in", "s")
        self._events = meter.create_counter("callagent.events")
        self._failures = meter.create_counter("callagent.provider.failures")

    def count(self, record: CallRecord) -> None:
        """Count a call by its final record."""
        self._events.add(1, {"event": "call"})
        self._events.add(record.underruns, {"event": "underrun"})
        # Only attributes with few values are used: the collector keeps a series for each combination.
        for failure in record.provider_failures:
            self._failures.add(1, {"role": failure["role"], "provider": failure["provider"]})
        for turn in record.turns:
            self._count_turn(turn)

    def _count_turn(self, turn: TurnEntry) -> None:
        _observe(self._response, turn.latency.get("response"), {})
        _observe(self._barge_in, turn.latency.get("barge_in"), {})
        for stage in STAGES:
            _observe(self._stages, turn.latency.get(stage), {"stage": stage})
        self._events.add(sum(one.kind == "filler" for one in turn.spoken), {"event": "filler"})
        resumed = sum(bool(pause["resumed"]) for pause in turn.pauses)
        self._events.add(resumed, {"event": "false_interruption"})
        for request in turn.requests:
            self._count_request(request)

    def _count_request(self, request: RequestRecord) -> None:
        attributes = {"gen_ai.operation.name": "chat", **self._attributes_of_model}
        self._duration.record(request.duration_ms / 1000, attributes)
        for kind, tokens in (("input", request.input_tokens), ("output", request.output_tokens)):
            self._tokens.record(tokens, {**attributes, "gen_ai.token.type": kind})
        if request.first_token_at is not None:
            self._first_token.record(request.first_token_at - request.requested_at, attributes)


def _observe(histogram: Histogram, seconds: float | None, attributes: Mapping[str, str]) -> None:
    if seconds is not None:
        histogram.record(seconds, dict(attributes))
