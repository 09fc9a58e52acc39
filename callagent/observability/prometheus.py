"""Metrics of calls and providers in the Prometheus text format. A call is counted from its record when it has ended.

The series are kept by `prometheus_client`, in a registry for each server. What is added here is a bound: label values
come from projects, peers and models, so a metric has at most `MAX_SERIES` series, and further ones are counted as
`other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from callagent.failover import BreakerState, Lineup
from callagent.json_values import JsonObject, is_true, number_at
from callagent.records import CallRecord, TurnEntry, seconds_between

# A `_created` series beside each counter would double what is scraped, and nothing asks for it.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

MAX_SERIES: Final = 500
"""Series of one metric: names of a project's metrics, for example, may be made from callers' words."""
MAX_LABEL_CHARACTERS: Final = 100
# Bounds of buckets: fine where a listener notices the difference, coarse beyond.
_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_CALL_SECONDS: Final = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_MILLISECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 500.0)
_STAGES: Final = ("endpointing", "transcription", "token", "functions", "voice", "wire")
_OTHER: Final = "other"

Labels = tuple[str, ...]
T = TypeVar("T")


class _BoundedLabels:
    """The label values that a metric has so far."""

    def __init__(self) -> None:
        self._known: set[Labels] = set()

    def bound(self, values: Labels) -> Labels:
        """Return `values` as they are counted: cut, valid UTF-8, and `other` for new ones beyond the bound."""
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
    """The server's metrics of calls, and of its process. All on the event loop."""

    def __init__(self) -> None:
        # Not the library's global registry: several servers may run in one process, as they do in tests.
        self._registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        registry = self._registry
        self.calls_started = Counter(registry, "callagent_calls_started_total", "Calls taken.", ("wire",))
        self.calls_refused = Counter(registry, "callagent_calls_refused_total", "Calls for which no project answers.")
        self.calls_ended = Counter(registry, "callagent_calls_ended_total", "Calls by how they ended.", ("reason",))
        self.limits_reached = Counter(
            registry,
            "callagent_limit_reached_total",
            "What was refused because of a limit, by its setting.",
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
        """Return the exposition; `gauges` are figures of this moment: name, what it says, value."""
        # Figures of this moment are made for each scrape: to keep them would need a write at every change.
        families = [GaugeMetricFamily(name, text, value=value) for name, (text, value) in gauges.items()]
        return _exposition([*families, *self._registry.collect()])


class _Outcomes:
    """Metrics of whole calls: how they ended and what failed in them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._causes = Counter(
            registry, "callagent_hang_up_causes_total", "Why peers hung up, by their own word.", ("cause",)
        )
        self._seconds = Histogram(registry, "callagent_call_seconds", "How long calls lasted.", _CALL_SECONDS)
        self._silences = Counter(registry, "callagent_silent_turns_total", "Turns in which the caller stayed silent.")
        self._transfers = Counter(registry, "callagent_transfers_total", "Transfers tried.", ("method", "outcome"))
        self._underruns = Counter(
            registry, "callagent_voice_underruns_total", "Gaps in utterances: the voice was too slow."
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
        self._written = Counter(registry, "callagent_project_metrics_total", "Metrics that projects wrote.", ("name",))

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
            self._written.add(str(metric["name"]))


class _Turns:
    """Metrics of turns: how soon the agent answered, and what models and functions did for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._turns = Counter(registry, "callagent_turns_total", "Turns of callers.")
        self._response = Histogram(
            registry, "callagent_response_seconds", "From the caller's last sound to the reply's first.", _SECONDS
        )
        self._stages = Histogram(
            registry, "callagent_turn_stage_seconds", "Parts of the response time.", _SECONDS, ("stage",)
        )
        self._barge_in = Histogram(
            registry,
            "callagent_barge_in_seconds",
            "From the caller's first sound over the reply to its silence.",
            _SECONDS,
        )
        self._false_interruptions = Counter(
            registry, "callagent_false_interruptions_total", "Pauses of the agent for what was no interruption."
        )
        self._fillers = Counter(registry, "callagent_fillers_total", "Words said while the caller waited.")
        self._first_tokens = Histogram(
            registry, "callagent_first_token_seconds", "From a request to the model's first token.", _SECONDS
        )
        self._tokens = Counter(registry, "callagent_model_tokens_total", "Tokens of models.", ("kind",))
        self._functions = Histogram(
            registry, "callagent_function_seconds", "How long functions ran.", _SECONDS, ("function",)
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
                # Its text is all that a record has of an error; one that is about a deadline speaks of it.
                kind = "timeout" if "deadline" in function.error or "time" in function.error.lower() else "error"
                self._function_errors.add(function.name, kind)


class _Media:
    """What became of packets, and how evenly they came and left."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._packets = Counter(registry, "callagent_rtp_packets_total", "Packets by what became of them.", ("kind",))
        self._one_way = Counter(
            registry, "callagent_rtp_one_way_calls_total", "Calls whose peer said that it does not hear us."
        )
        self._round_trip = Histogram(
            registry,
            "callagent_rtp_round_trip_milliseconds",
            "Of ended calls whose peer reports by RTCP.",
            _MILLISECONDS,
        )
        self._jitter = Histogram(registry, "callagent_rtp_jitter_milliseconds", "Jitter of ended calls.", _MILLISECONDS)
        self._peer_jitter = Histogram(
            registry,
            "callagent_rtp_peer_jitter_milliseconds",
            "Of what we sent, where the peer reports by RTCP.",
            _MILLISECONDS,
        )
        self._lateness = Histogram(
            registry,
            "callagent_rtp_send_lateness_milliseconds",
            "The latest packet of each ended call.",
            _MILLISECONDS,
        )

    def count(self, media: JsonObject) -> None:
        """Count the media of a call by the statistics of its record."""
        for kind in ("received", "sent", "lost", "late", "duplicate", "refused"):
            self._packets.add(kind, by=number_at(media, f"packets_{kind}"))
        # What the peer's RTCP reports as lost of what we sent: negative where it got duplicates (RFC 3550 §6.4.1).
        self._packets.add("peer_lost", by=max(0, number_at(media, "peer_packets_lost")))
        self._one_way.add(by=is_true(media, "peer_one_way"))
        # Zero means that no report of the peer has come, and is no measurement.
        if round_trip := number_at(media, "round_trip_ms"):
            self._round_trip.observe(round_trip)
        self._jitter.observe(number_at(media, "jitter_ms"))
        if number_at(media, "peer_reports"):
            self._peer_jitter.observe(number_at(media, "peer_jitter_ms"))
        self._lateness.observe(number_at(media, "send_lateness_max_ms"))


def provider_metrics(lineups: Iterable[Lineup[T]]) -> list[str]:
    """Return lines with the failures and open breakers of every provider, and the outages of every role."""
    failures = CounterMetricFamily(
        "callagent_provider_failures", "What providers did not do.", labels=("role", "provider")
    )
    resting = GaugeMetricFamily(
        "callagent_provider_resting", "1: it failed lately and is only probed.", labels=("role", "provider")
    )
    alarms = GaugeMetricFamily(
        "callagent_provider_alarm", "1: its key is refused, somebody has to act.", labels=("role", "provider")
    )
    outages = CounterMetricFamily("callagent_provider_outages", "How often nobody could do it.", labels=("role",))
    for lineup in lineups:
        outages.add_metric((lineup.role,), lineup.outages)
        # An embedded provider starts again by itself: nobody is to be called for it.
        for member in (one for one in lineup.members if not one.embedded):
            who = (lineup.role, member.name)
            failures.add_metric(who, member.breaker.failures)
            resting.add_metric(who, member.breaker.state is not BreakerState.CLOSED)
            alarms.add_metric(who, member.breaker.alarm)
    return _exposition([one for one in (failures, resting, alarms, outages) if one.samples]).splitlines()


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    """What `generate_latest` asks of a registry, for families that are made at the moment of the scrape."""

    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _exposition(families: Sequence[Metric]) -> str:
    return prometheus_client.generate_latest(_Families(families)).decode()
