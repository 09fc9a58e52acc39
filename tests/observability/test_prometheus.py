from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import parser

from callagent.observability import Metrics
from callagent.records import CallRecord, FunctionRecord, Spoken, TurnEntry
from callagent.records.call_record import RequestRecord
from tests.records.synthetic import synthetic_records


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_a_fresh_server_has_text_that_prometheus_reads() -> None:
    found = samples(Metrics().text({"callagent_calls_live": ("Calls that are on.", 3.0)}))
    assert found["callagent_calls_live", frozenset()] == 3
    assert found["callagent_response_seconds_count", frozenset()] == 0


def test_ended_calls_are_counted_by_what_happened_in_them() -> None:
    metrics = Metrics()
    records = list(synthetic_records(50))
    for record in records:
        metrics.ended(record)
    found = samples(metrics.text({}))
    reasons = {one.end_reason for one in records}
    for reason in reasons:
        number = found["callagent_calls_ended_total", frozenset({("reason", str(reason))})]
        assert number == sum(one.end_reason == reason for one in records)
    turns = sum(len(one.turns) for one in records)
    assert found["callagent_response_seconds_count", frozenset()] == turns
    assert found["callagent_response_seconds_bucket", frozenset({("le", "+Inf")})] == turns
    assert found["callagent_project_metrics_total", frozenset({("name", "PARCEL_FOUND")})] == 50
    below = [value for (name, _), value in found.items() if name == "callagent_response_seconds_bucket"]
    assert below == sorted(below)
    functions = frozenset({("function", "look_up_parcel"), ("le", "0.05")})
    assert found["callagent_function_seconds_bucket", functions] == turns


def test_media_transfers_and_errors_are_counted() -> None:
    metrics = Metrics()
    record = CallRecord(id="c", end_reason="error", in_progress=False)
    record.media = {"packets_received": 100, "packets_lost": 2, "jitter_ms": 3.0, "send_lateness_max_ms": 1.5}
    record.media |= {"peer_packets_lost": 4, "round_trip_ms": 12.0}
    record.transfers = [{"method": "refer", "status": "refused"}]
    record.errors = [{"what": "model", "detail": "x", "at": 0.0}]
    record.turns = [TurnEntry(1, functions=[FunctionRecord(1, "f", {}, error="it failed")])]
    metrics.ended(record)
    found = samples(metrics.text({}))
    assert found["callagent_rtp_packets_total", frozenset({("kind", "lost")})] == 2
    assert found["callagent_rtp_packets_total", frozenset({("kind", "peer_lost")})] == 4
    assert found["callagent_rtp_jitter_milliseconds_sum", frozenset()] == 3
    assert found["callagent_rtp_round_trip_milliseconds_sum", frozenset()] == 12
    assert found["callagent_transfers_total", frozenset({("method", "refer"), ("outcome", "refused")})] == 1
    assert found["callagent_errors_total", frozenset({("what", "model")})] == 1
    assert found["callagent_function_errors_total", frozenset({("function", "f"), ("kind", "error")})] == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("FunctionTimeout: no answer within 10 s", "timeout"),
        ("TimeoutError: ", "timeout"),
        ("TimeoutError", "timeout"),
        ("ReadTimeout: HTTPSConnectionPool(host='a.example', port=443): Read timed out. (read timeout=5)", "timeout"),
        ("URLError: <urlopen error timed out>", "timeout"),
        ("McpFailed: tools.example: no answer to tools/call within 0.5 s", "timeout"),
        ("McpFailed: tools.example: the server sent no `endpoint` event within 5 s", "timeout"),
        ("McpFailed: tools.example: no answer in time", "timeout"),
        ("McpFailed: tools.example: the answer took too long", "timeout"),
        ("ChatCompletionError: the model did not answer in time", "timeout"),
        ("RuntimeError: the table is taken", "error"),
        ("AttributeError: module 'datetime' has no attribute 'today'", "error"),
        ("ValueError: time data '25:00' does not match format '%H:%M'", "error"),
        ("KeyError: 'deadline'", "error"),
        ("TypeError: get() got an unexpected keyword argument 'timeout'", "error"),
        ("McpFailed: tools.example: book: no table in time zone UTC", "error"),
        ("RunFailed: the loop did not end within 5 rounds", "error"),
        ("WorkerDied: the worker ended with status 1", "error"),
        ("it failed", "error"),
    ],
)
def test_only_errors_of_missed_deadlines_count_as_timeouts(error: str, kind: str) -> None:
    metrics = Metrics()
    metrics.ended(CallRecord(id="c", turns=[TurnEntry(1, functions=[FunctionRecord(1, "f", {}, error=error)])]))
    found = [key for key in samples(metrics.text({})) if key[0] == "callagent_function_errors_total"]
    assert found == [("callagent_function_errors_total", frozenset({("function", "f"), ("kind", kind)}))]


def test_hostile_names_are_values_and_their_number_is_bounded() -> None:
    metrics = Metrics()
    names = ['a"} 1\nfake_metric 5\n', "\\", "x" * 500, *(f"n{number}" for number in range(2000))]
    for name in names:
        metrics.ended(CallRecord(id="c", metrics=[{"name": name, "value": 1}]))
    found = samples(metrics.text({}))
    assert not any(name.startswith("fake") for name, _ in found)
    written = [labels for name, labels in found if name == "callagent_project_metrics_total"]
    assert len(written) <= 501
    assert found["callagent_project_metrics_total", frozenset({("name", "other")})] == 2003 - 500


def test_a_counter_without_labels_begins_at_nought() -> None:
    assert samples(Metrics().text({}))["callagent_turns_total", frozenset()] == 0


def test_names_help_texts_labels_buckets_and_values_stay() -> None:
    """`exposition.txt` is what dashboards and alerts were made for. Metrics of the process may stand beside it."""
    metrics = Metrics()
    for record in synthetic_records(50):
        metrics.ended(record)
    metrics.calls_started.add("sip")
    record = CallRecord(id="c", end_reason="error", in_progress=False)
    record.media = {"packets_received": 100, "packets_lost": 2, "jitter_ms": 3.0, "send_lateness_max_ms": 1.5}
    record.media |= {"peer_packets_lost": 4, "round_trip_ms": 12.0, "peer_reports": 1, "peer_jitter_ms": 2.0}
    record.transfers = [{"method": "refer", "status": "refused"}]
    record.errors = [{"what": "model", "detail": "x", "at": 0.0}]
    metrics.ended(record)
    text = metrics.text({"callagent_calls_live": ("Calls that are on.", 3.0)})
    assert read_exposition(text) == read_exposition(Path(__file__).with_name("exposition.txt").read_text())
    assert "# EOF" not in text
    assert "_created" not in text


def read_exposition(text: str) -> dict[object, object]:
    """Help texts, kinds and values; numbers are compared as numbers, also those of buckets."""
    found: dict[object, object] = {}
    for family in parser.text_string_to_metric_families(text):
        if family.name.startswith("process_"):
            continue
        found[family.name] = (family.documentation, family.type)
        for sample in family.samples:
            labels = {name: float(value) if name == "le" else value for name, value in sample.labels.items()}
            found[sample.name, frozenset(labels.items())] = round(sample.value, 6)
    return found


def test_waits_interruptions_and_providers_are_counted() -> None:
    metrics = Metrics()
    record = CallRecord(id="c", end_reason="agent_hangup", in_progress=False, underruns=2)
    record.provider_failures = [{"role": "voice", "provider": "deepgram", "error": "401", "at": 1.0}]
    turn = TurnEntry(1, latency={"response": 1.0, "token": 0.25, "functions": 0.3, "voice": 0.1, "wire": 0.01})
    turn.spoken = [Spoken("One moment.", "filler", 1.0), Spoken("Here it is.", "speech", 2.0)]
    turn.pauses = [{"at": 1.0, "ended_at": 1.5, "resumed": True}, {"at": 3.0, "ended_at": 3.2, "resumed": False}]
    turn.requests = [RequestRecord(None, None, 1.0, 400.0, 12, 8, [], None, 1.25)]
    record.turns = [turn]
    metrics.ended(record)
    found = samples(metrics.text({}))
    assert found["callagent_voice_underruns_total", frozenset()] == 2
    assert found["callagent_fillers_total", frozenset()] == 1
    assert found["callagent_false_interruptions_total", frozenset()] == 1
    assert found["callagent_first_token_seconds_sum", frozenset()] == 0.25
    assert found["callagent_model_tokens_total", frozenset({("kind", "output")})] == 8
    who = frozenset({("role", "voice"), ("provider", "deepgram")})
    assert found["callagent_call_provider_failures_total", who] == 1
    for stage, seconds in (("token", 0.25), ("functions", 0.3), ("voice", 0.1), ("wire", 0.01)):
        assert found["callagent_turn_stage_seconds_sum", frozenset({("stage", stage)})] == seconds
