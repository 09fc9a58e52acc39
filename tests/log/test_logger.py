"""The log of a process of its own: what is set there holds for all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SCRIPT = """
from callagent import log
from callagent.records import Redaction

log.configure("info", json=True, redact=Redaction(("card", "email")).value)
lines = log.get_logger("callagent.test")


def pay(password):
    raise ValueError("4111 1111 1111 1111 is declined")


lines.warning("function_failed", error="cannot reach ann@example.com", calls=3)
try:
    pay("hunter2")
except ValueError:
    lines.exception("call_failed")
with lines.contain("reply_failed", call="c1") as boundary:
    pay("hunter2")
lines.info("after_it", error=repr(boundary.error))
try:
    with lines.contain("not_contained"):
        raise SystemExit("cancelled")
except SystemExit:
    lines.info("passed_on")
"""


def logged() -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_what_code_and_peers_say_is_redacted() -> None:
    failed, raised, *_ = logged()
    assert (failed["error"], failed["calls"]) == ("cannot reach [email]", 3)
    assert raised["exception"][0]["exc_value"] == "[card number] is declined"


def test_a_traceback_tells_no_values() -> None:
    assert "hunter2" not in json.dumps(logged())


def test_a_boundary_logs_what_is_raised_in_it_and_goes_on() -> None:
    _, _, contained, after, passed = logged()
    assert (contained["event"], contained["call"], contained["level"]) == ("reply_failed", "c1", "error")
    assert contained["exception"][0]["exc_type"] == "ValueError"
    assert after["error"] == "ValueError('[card number] is declined')"
    assert passed["event"] == "passed_on"
