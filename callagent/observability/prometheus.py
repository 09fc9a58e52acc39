"""Metrics of calls and providers in the Prometheus text format. A call is counted from its record when it has ended."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from callagent.failover import BreakerState, Lineup
from callagent.records import CallRecord, TurnEntry, seconds_between

_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_CALL_SECONDS: Final = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_MILLISECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 500.0)
_SERIES_BOUND: Final = 500
_OTHER: Final = "other"

Labels = tuple[str, ...]


class Counter:
    """Counts by labels; beyond a bound of label values all further ones are `other`."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *values: str, by: float = 1) -> None:
        key = _bounded(values, self._values)
        self._values[key] = self._values.get(key, 0.0) + by

    def lines(self) -> Iterable[str]:
        for values, number in sorted(self._values.items()):
            yield f"{self.name}{_labels(self.labels, values)} {_text(number)}"


class Histogram:
    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._bounds = bounds
        self._values: dict[Labels, list[float]] = {}
        if not labels:
            self._values[()] = self._zero()

    def observe(self, value: float, *labels: str) -> None:
        key = _bounded(labels, self._values)
        counts = self._values.setdefault(key, self._zero())
        counts[bisect_left(self._bounds, value)] += 1
        counts[-1] += value

    def _zero(self) -> list[float]:
        """A count for each bucket, for what is above all of them, and the sum."""
        return [0.0] * (len(self._bounds) + 2)

    def lines(self) -> Iterable[str]:
        for values, counts in sorted(self._values.items()):
            total = 0.0
            for bound, number in zip((*self._bounds, float("inf")), counts[:-1], strict=True):
                total += number
                edge = "+Inf" if bound == float("inf") else _text(bound)
                yield f"{self.name}_bucket{_labels((*self.labels, 'le'), (*values, edge))} {_text(total)}"
            yield f"{self.name}_sum{_labels(self.labels, values)} {_text(counts[-1])}"
            yield f"{self.name}_count{_labels(self.labels, values)} {_text(total)}"


class Metrics:
    """The server's counters. All on the event loop."""

    def __init__(self) -> None:
        self.calls_started = Counter("callagent_calls_started_total", "Calls taken.", ("wire",))
        self.calls_refused = Counter("callagent_calls_refused_total", "Calls for which no project answers.")
        self.calls_ended = Counter("callagent_calls_ended_total", "Calls by how they ended.", ("reason",))
        self._causes = Counter("callagent_hang_up_causes_total", "Why peers hung up, by their own word.", ("cause",))
        self._call_seconds = Histogram("callagent_call_seconds", "How long calls lasted.", _CALL_SECONDS)
        self._turns = Counter("callagent_turns_total", "Turns of callers.")
        self._silences = Counter("callagent_silent_turns_total", "Turns in which the caller stayed silent.")
        self._transfers = Counter("callagent_transfers_total", "Transfers tried.", ("method", "outcome"))
        self._response = Histogram(
            "callagent_response_seconds", "From the caller's last sound to the reply's first.", _SECONDS
        )
        self._stages = Histogram("callagent_turn_stage_seconds", "Parts of the response time.", _SECONDS, ("stage",))
        self._barge_in = Histogram(
            "callagent_barge_in_seconds", "From the caller's first sound over the reply to its silence.", _SECONDS
        )
        self._false_interruptions = Counter(
            "callagent_false_interruptions_total", "Pauses of the agent for what was no interruption."
        )
        self._fillers = Counter("callagent_fillers_total", "Words said while the caller waited.")
        self.limits_reached = Counter(
            "callagent_limit_reached_total", "What was refused because of a limit, by its setting.", ("limit",)
        )
        self._underruns = Counter("callagent_voice_underruns_total", "Gaps in utterances: the voice was too slow.")
        self._first_tokens = Histogram(
            "callagent_first_token_seconds", "From a request to the model's first token.", _SECONDS
        )
        self._tokens = Counter("callagent_model_tokens_total", "Tokens of models.", ("kind",))
        self._provider_failures = Counter(
            "callagent_call_provider_failures_total", "Failures of providers within calls.", ("role", "provider")
        )
        self._errors = Counter("callagent_errors_total", "Errors within calls, by what failed.", ("what",))
        self._functions = Histogram("callagent_function_seconds", "How long functions ran.", _SECONDS, ("function",))
        self._function_errors = Counter(
            "callagent_function_errors_total", "Functions that failed.", ("function", "kind")
        )
        self._end_functions = Counter("callagent_end_functions_total", "End functions by outcome.", ("outcome",))
        self._packets = Counter("callagent_rtp_packets_total", "Packets by what became of them.", ("kind",))
        self._one_way = Counter("callagent_rtp_one_way_calls_total", "Calls whose peer said that it does not hear us.")
        self._round_trip = Histogram(
            "callagent_rtp_round_trip_milliseconds", "Of ended calls whose peer reports by RTCP.", _MILLISECONDS
        )
        self._jitter = Histogram("callagent_rtp_jitter_milliseconds", "Jitter of ended calls.", _MILLISECONDS)
        self._peer_jitter = Histogram(
            "callagent_rtp_peer_jitter_milliseconds", "Of what we sent, where the peer reports by RTCP.", _MILLISECONDS
        )
        self._lateness = Histogram(
            "callagent_rtp_send_lateness_milliseconds", "The latest packet of each ended call.", _MILLISECONDS
        )
        self._written = Counter("callagent_project_metrics_total", "Metrics that projects wrote.", ("name",))
        self._families: list[Counter | Histogram] = [one for one in vars(self).values() if not isinstance(one, list)]

    def ended(self, record: CallRecord) -> None:
        """Count a call by its final record."""
        self.calls_ended.add(record.end_reason or "unknown")
        for cause in record.hang_up_causes:
            self._causes.add(cause)
        self._call_seconds.observe(record.total_duration)
        self._silences.add(by=record.num_silences)
        self._end_functions.add(record.end_function)
        for transfer in record.transfers:
            self._transfers.add(transfer["method"], transfer["status"])
        for error in record.errors:
            self._errors.add(error["what"])
        self._underruns.add(by=record.underruns)
        for failure in record.provider_failures:
            self._provider_failures.add(failure["role"], failure["provider"])
        for reached in record.limits_reached:
            self.limits_reached.add(reached["limit"])
        for metric in record.metrics:
            self._written.add(str(metric["name"]))
        for turn in record.turns:
            self._turn(turn)
        self._media(record.media)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """The exposition; `gauges` are figures of this moment: name, what it says, value."""
        lines = []
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {_text(value)}"]
        for family in self._families:
            lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}", *family.lines()]
        return "\n".join(lines) + "\n"

    def _turn(self, turn: TurnEntry) -> None:
        if turn.number:
            self._turns.add()
        _observe(self._response, turn.latency.get("response"))
        _observe(self._barge_in, turn.latency.get("barge_in"))
        for stage in ("endpointing", "transcription", "token", "functions", "voice", "wire"):
            _observe(self._stages, turn.latency.get(stage), stage)
        self._false_interruptions.add(by=sum(bool(pause["resumed"]) for pause in turn.pauses))
        self._fillers.add(by=sum(one.kind == "filler" for one in turn.spoken))
        for request in turn.requests:
            _observe(self._first_tokens, seconds_between(request.requested_at, request.first_token_at))
            self._tokens.add("input", by=request.input_tokens)
            self._tokens.add("output", by=request.output_tokens)
        for function in turn.functions:
            self._functions.observe(function.duration_ms / 1000, function.name)
            if function.error:
                kind = "timeout" if "deadline" in function.error or "time" in function.error.lower() else "error"
                self._function_errors.add(function.name, kind)

    def _media(self, media: Mapping[str, Any]) -> None:
        if not media:
            return
        for kind in ("received", "sent", "lost", "late", "duplicate", "refused"):
            self._packets.add(kind, by=media.get(f"packets_{kind}", 0))
        # Of what we sent, as the peer's RTCP tells.
        self._packets.add("peer_lost", by=media.get("peer_packets_lost", 0))
        self._one_way.add(by=bool(media.get("peer_one_way")))
        if media.get("round_trip_ms"):
            self._round_trip.observe(media["round_trip_ms"])
        self._jitter.observe(media.get("jitter_ms", 0.0))
        if media.get("peer_reports"):
            self._peer_jitter.observe(media.get("peer_jitter_ms", 0.0))
        self._lateness.observe(media.get("send_lateness_max_ms", 0.0))


def _observe(histogram: Histogram, seconds: float | None, *labels: str) -> None:
    if seconds is not None:
        histogram.observe(seconds, *labels)


def _bounded(values: Labels, known: Mapping[Labels, Any]) -> Labels:
    if values in known or len(known) < _SERIES_BOUND:
        return values
    return (_OTHER,) * len(values)


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return value[:100].replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _text(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(round(number, 6))


def provider_metrics(lineups: Iterable[Lineup[Any]]) -> list[str]:
    """Lines of failures and open breakers of every provider, and of outages of every role."""
    lineups = list(lineups)
    members = [(lineup.role, member) for lineup in lineups for member in lineup.members if not member.embedded]
    failures = [(f'role="{role}",provider="{member.name}"', member.breaker.failures) for role, member in members]
    resting = [
        (f'role="{role}",provider="{member.name}"', int(member.breaker.state is not BreakerState.CLOSED))
        for role, member in members
    ]
    alarms = [(f'role="{role}",provider="{member.name}"', int(member.breaker.alarm)) for role, member in members]
    outages = [(f'role="{lineup.role}"', lineup.outages) for lineup in lineups]
    return [
        *_lines_of("callagent_provider_failures_total", "counter", "What providers did not do.", failures),
        *_lines_of("callagent_provider_resting", "gauge", "1: it failed lately and is only probed.", resting),
        *_lines_of("callagent_provider_alarm", "gauge", "1: its key is refused, somebody has to act.", alarms),
        *_lines_of("callagent_provider_outages_total", "counter", "How often nobody could do it.", outages),
    ]


def _lines_of(name: str, kind: str, text: str, values: Iterable[tuple[str, int]]) -> list[str]:
    lines = [f"{name}{{{labels}}} {value}" for labels, value in values]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines] if lines else []
