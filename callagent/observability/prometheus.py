"""Metrics of calls and providers in the Prometheus text format. A call is counted from its record when it has ended.

`prometheus_client` keeps the series, in a registry for each server. This module bounds their number: label values come
from projects, peers and models, so a metric has at most `MAX_SERIES` series, and further ones are counted as `other`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from callagent.failover import BreakerState, Lineup
from callagent.json_values import JsonObject, is_true, number_at
from callagent.records import CallRecord, TurnEntry, seconds_between

# A `_created` series beside each counter would double the scraped text, and nothing uses it.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

MAX_SERIES: Final = 500
"""Series of one metric; more could come, for example, from a project that names metrics by callers' words."""
MAX_LABEL_CHARACTERS: Final = 100
"""Longer label values are cut."""
# Upper bounds of histogram buckets: fine where a listener notices the difference, coarse beyond.
_LATENCY_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_CALL_BUCKETS: Final = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_MILLISECOND_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 500.0)
# Parts of a turn's response time, as the record's `latency` names them.
_STAGES: Final = ("endpointing", "transcription", "token", "functions", "voice", "wire")
_OTHER: Final = "other"
_MISSED_DEADLINE: Final = re.compile(
    r"^\w*Timeout(Error)?(:|$)"
    r"|^McpFailed: .*(no (answer|`endpoint` event)\b.* (within \S+ s|in time)|the answer took too long)$"
    r"|the model did not answer in time$"
    r"|\btimed out\b"
)
"""The errors of functions that missed a deadline, of which a record has only the text: `FunctionTimeout` of the workers
and other errors by their type, those of MCP servers and models, and "timed out", as Python and its libraries say."""

Labels = tuple[str, ...]
T = TypeVar("T")


class _BoundedLabels:
    """The label values that a metric has so far."""

    def __init__(self) -> None:
        self._known: set[Labels] = set()

    def bound(self, values: Labels) -> Labels:
        """Return the label values to count: `values` cut and in valid UTF-8, or `other` beyond the bound."""
        values = tuple(value[:MAX_LABEL_CHARACTERS].encode("utf-8", "replace").decode() for value in values)
        if values in self._known:
            return values
        if len(self._known) >= MAX_SERIES:
            return (_OTHER,) * len(values)
        self._known.add(values)
        return values


class Counter:
    """A counter with a bounded number of series."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: Labels = ()) -> None:
        self._counter = prometheus_client.Counter(name, text, labels, registry=registry)
        self._labels = _BoundedLabels()

    def add(self, *values: str, by: float = 1) -> None:
        """Count `by` more for these label values."""
        # A metric without labels has one series from the start, so that its first increase is seen as one.
        counter = self._counter.labels(*self._labels.bound(values)) if values else self._counter
        counter.inc(by)


class Histogram:
    """A histogram with a bounded number of series."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, bounds: Sequence[float], labels: Labels = ()
    ) -> None:
        self._histogram = prometheus_client.Histogram(name, text, labels, registry=registry, buckets=bounds)
        self._labels = _BoundedLabels()

    def observe(self, value: float | None, *labels: str) -> None:
        """Count `value` for these label values; None is not counted."""
        if value is not None:
            histogram = self._histogram.labels(*self._labels.bound(labels)) if labels else self._histogram
            histogram.observe(value)


class Metrics:
    """The server's metrics of calls and of its process; to be used on the event loop only."""

    def __init__(self) -> None:
        # Not the library's global registry: several servers may run in one process, as they do in tests.
        self._registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        registry = self._registry
        self.calls_started = Counter(registry, "callagent_calls_started_total", "Calls that began.", ("wire",))
        self.calls_refused = Counter(registry, "callagent_calls_refused_total", "Calls for which no project answers.")
        self.calls_ended = Counter(registry, "callagent_calls_ended_total", "Calls by how they ended.", ("reason",))
        self.limits_reached = Counter(
            registry,
            "callagent_limit_reached_total",
            "Refusals because of a limit, by its setting.",
            ("limit",),
        )
        self._outcomes = _Outcomes(registry)
        self._turns = _Turns(registry)
        self._media = _Media(registry)

    def ended(self, record: CallRecord) -> None:
        """Count a call by its final record."""
        self.calls_ended.add(record.end_reason or "unknown")
        for reached in record.limits_reached:
            self.limits_reached.add(reached["limit"])
        self._outcomes.count(record)
        for turn in record.turns:
            self._turns.count(turn)
        if record.media:
            self._media.count(record.media)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return the metrics as Prometheus text. `gauges` has a help text and a present value by metric name."""
        # Present values are read at each scrape: to keep them in the registry would need a write at every change.
        families = [GaugeMetricFamily(name, text, value=value) for name, (text, value) in gauges.items()]
        return _exposition([*families, *self._registry.collect()])


class _Outcomes:
    """Metrics of whole calls: how they ended and what failed in them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._causes = Counter(
            registry, "callagent_hang_up_causes_total", "Causes that peers gave for hanging up.", ("cause",)
        )
        self._seconds = Histogram(registry, "callagent_call_seconds", "How long calls lasted.", _CALL_BUCKETS)
        self._silences = Counter(registry, "callagent_silent_turns_total", "Turns in which the caller stayed silent.")
        self._transfers = Counter(registry, "callagent_transfers_total", "Transfers tried.", ("method", "outcome"))
        self._underruns = Counter(
            registry, "callagent_voice_underruns_total", "Gaps in utterances because the voice was too slow."
        )
        self._provider_failures = Counter(
            registry,
            "callagent_call_provider_failures_total",
            "Failures of providers within calls.",
            ("role", "provider"),
        )
        self._errors = Counter(registry, "callagent_errors_total", "Errors within calls, by what failed.", ("what",))
        self._end_functions = Counter(
            registry, "callagent_end_functions_total", "End functions by outcome.", ("outcome",)
        )
        self._project_metrics = Counter(
            registry, "callagent_project_metrics_total", "Metrics that projects wrote.", ("name",)
        )

    def count(self, record: CallRecord) -> None:
        """Count a call by its final record."""
        for cause in record.hang_up_causes:
            self._causes.add(cause)
        self._seconds.observe(record.total_duration)
        self._silences.add(by=record.num_silences)
        self._end_functions.add(record.end_function)
        for transfer in record.transfers:
            self._transfers.add(transfer["method"], transfer["status"])
        for error in record.errors:
            self._errors.add(error["what"])
        self._underruns.add(by=record.underruns)
        for failure in record.provider_failures:
            self._provider_failures.add(failure["role"], failure["provider"])
        for metric in record.metrics:
            self._project_metrics.add(str(metric["name"]))


class _Turns:
    """Metrics of turns: how soon the agent answered, and what models and functions did for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._turns = Counter(registry, "callagent_turns_total", "Turns of callers.")
        self._response = Histogram(
            registry,
            "callagent_response_seconds",
            "From the caller's last sound to the reply's first.",
            _LATENCY_BUCKETS,
        )
        self._stages = Histogram(
            registry, "callagent_turn_stage_seconds", "Parts of the response time.", _LATENCY_BUCKETS, ("stage",)
        )
        self._barge_in = Histogram(
            registry,
            "callagent_barge_in_seconds",
            "From the caller's first sound during the reply until the reply is silent.",
            _LATENCY_BUCKETS,
        )
        self._false_interruptions = Counter(
            registry,
            "callagent_false_interruptions_total",
            "Pauses of the agent after which it went on: the caller did not interrupt.",
        )
        self._fillers = Counter(registry, "callagent_fillers_total", "Fillers said while the caller waited.")
        self._first_tokens = Histogram(
            registry, "callagent_first_token_seconds", "From a request to the model's first token.", _LATENCY_BUCKETS
        )
        self._tokens = Counter(registry, "callagent_model_tokens_total", "Tokens of models.", ("kind",))
        self._functions = Histogram(
            registry, "callagent_function_seconds", "How long functions ran.", _LATENCY_BUCKETS, ("function",)
        )
        self._function_errors = Counter(
            registry, "callagent_function_errors_total", "Functions that failed.", ("function", "kind")
        )

    def count(self, turn: TurnEntry) -> None:
        """Count one entry of a record."""
        # Entry 0 is what the agent said before the caller's first turn.
        if turn.number:
            self._turns.add()
        self._response.observe(turn.latency.get("response"))
        self._barge_in.observe(turn.latency.get("barge_in"))
        for stage in _STAGES:
            self._stages.observe(turn.latency.get(stage), stage)
        self._false_interruptions.add(by=sum(bool(pause["resumed"]) for pause in turn.pauses))
        self._fillers.add(by=sum(one.kind == "filler" for one in turn.spoken))
        for request in turn.requests:
            self._first_tokens.observe(seconds_between(request.requested_at, request.first_token_at))
            self._tokens.add("input", by=request.input_tokens)
            self._tokens.add("output", by=request.output_tokens)
        for function in turn.functions:
            self._functions.observe(function.duration_ms / 1000, function.name)
            if function.error:
                kind = "timeout" if _MISSED_DEADLINE.search(function.error) else "error"
                self._function_errors.add(function.name, kind)


class _Media:
    """Metrics of media: packets received, sent and lost, and their delays."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._packets = Counter(registry, "callagent_rtp_packets_total", "Packets by outcome.", ("kind",))
        self._one_way = Counter(
            registry, "callagent_rtp_one_way_calls_total", "Calls whose peer reported that it does not hear us."
        )
        self._round_trip = Histogram(
            registry,
            "callagent_rtp_round_trip_milliseconds",
            "Round-trip time of ended calls whose peer reports by RTCP.",
            _MILLISECOND_BUCKETS,
        )
        self._jitter = Histogram(
            registry, "callagent_rtp_jitter_milliseconds", "Jitter of ended calls.", _MILLISECOND_BUCKETS
        )
        self._peer_jitter = Histogram(
            registry,
            "callagent_rtp_peer_jitter_milliseconds",
            "Jitter of the packets that we sent, if the peer reports by RTCP.",
            _MILLISECOND_BUCKETS,
        )
        self._lateness = Histogram(
            registry,
            "callagent_rtp_send_lateness_milliseconds",
            "How late the latest packet that we sent in each ended call was.",
            _MILLISECOND_BUCKETS,
        )

    def count(self, media: JsonObject) -> None:
        """Count the media of a call by the statistics of its record."""
        for kind in ("received", "sent", "lost", "late", "duplicate", "refused"):
            self._packets.add(kind, by=number_at(media, f"packets_{kind}"))
        # Packets of ours that the peer's RTCP reports as lost: negative if it got duplicates (RFC 3550 §6.4.1).
        self._packets.add("peer_lost", by=max(0, number_at(media, "peer_packets_lost")))
        self._one_way.add(by=is_true(media, "peer_one_way"))
        # Zero means that no report of the peer has come: it is not a measurement.
        if round_trip := number_at(media, "round_trip_ms"):
            self._round_trip.observe(round_trip)
        self._jitter.observe(number_at(media, "jitter_ms"))
        if number_at(media, "peer_reports"):
            self._peer_jitter.observe(number_at(media, "peer_jitter_ms"))
        self._lateness.observe(number_at(media, "send_lateness_max_ms"))


def provider_metrics(lineups: Iterable[Lineup[T]]) -> list[str]:
    """Return Prometheus lines with the failures and open breakers of every provider, and the outages of every role."""
    failures = CounterMetricFamily(
        "callagent_provider_failures", "Requests that providers failed.", labels=("role", "provider")
    )
    resting = GaugeMetricFamily(
        "callagent_provider_resting", "1: the provider failed lately and is only probed.", labels=("role", "provider")
    )
    alarms = GaugeMetricFamily(
        "callagent_provider_alarm", "1: the provider refuses its key; set a valid one.", labels=("role", "provider")
    )
    outages = CounterMetricFamily(
        "callagent_provider_outages", "How often all providers of a role failed.", labels=("role",)
    )
    for lineup in lineups:
        outages.add_metric((lineup.role,), lineup.outages)
        # Embedded providers are left out: they start again by themselves, so nobody has to act.
        for member in (one for one in lineup.members if not one.embedded):
            labels = (lineup.role, member.name)
            failures.add_metric(labels, member.breaker.failures)
            resting.add_metric(labels, member.breaker.state is not BreakerState.CLOSED)
            alarms.add_metric(labels, member.breaker.alarm)
    return _exposition([one for one in (failures, resting, alarms, outages) if one.samples]).splitlines()


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    """Metric families of one scrape, in the form that `generate_latest` takes."""

    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _exposition(families: Sequence[Metric]) -> str:
    return prometheus_client.generate_latest(_Families(families)).decode()
