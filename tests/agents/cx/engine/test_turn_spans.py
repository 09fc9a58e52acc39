"""TurnSpans of a turn, as the Session API tells them."""

from __future__ import annotations

import json
from pathlib import Path

from callagent.agents.cx import CxSession
from callagent.agents.cx.engine.turn_spans import MAX_SPANS, TurnSpans
from tests.agents.cx.support import driven, write_app


def test_parts_come_in_the_order_in_which_they_began() -> None:
    now = iter([0.0, 10.0, 11.0, 12.5, 13.0, 14.0])
    spans = TurnSpans(lambda: next(now))
    spans.begin()
    with spans.measured("outer", agent="a", error=""):
        spans.add_ended("inner", 0.5, {"n": 1})
    whole = spans.root_span({"turnIndex": 1})
    assert (whole["startTime"], whole["duration"]) == ("1970-01-01T00:00:10.000000Z", "4.000000s")
    outer, inner = whole["childSpans"]
    assert (outer["name"], outer["duration"], outer["attributes"]) == ("outer", "2.000000s", {"agent": "a"})
    assert (inner["startTime"], inner["attributes"]) == ("1970-01-01T00:00:12.000000Z", {"n": 1})


def test_a_turn_has_so_many_and_the_next_begins_anew() -> None:
    spans = TurnSpans()
    for number in range(MAX_SPANS + 10):
        spans.add_ended("part", 0.0, {"number": number})
    assert len(spans.root_span({})["childSpans"]) == MAX_SPANS
    spans.begin()
    assert spans.root_span({})["childSpans"] == []


async def test_a_turn_tells_of_model_tool_and_callback(tmp_path: Path) -> None:
    tool = "def look(a: str) -> dict:\n    'Looks.'\n    import time\n    time.sleep(0.05)\n    return {}\n"
    after = "def after_agent_callback(callback_context):\n    return None\n"
    path = write_app(tmp_path, tools={"look": tool}, callbacks={"after_agent": after})
    asks = {"calls": [{"name": "look", "arguments": {"a": "x"}}]}
    async with driven(path, asks, {"text": "Yes."}) as agent:
        outputs = [output async for output in CxSession(agent.agent).take([{"text": "Look."}])]
    whole = json.loads(json.dumps(outputs[-1]["diagnosticInfo"]["rootSpan"]))
    assert whole["attributes"] == {"turnIndex": 1}
    children = whole["childSpans"]
    assert [each["name"] for each in children] == ["model", "tool", "model", "after_agent_callback"]
    assert children[1]["attributes"] == {"name": "look"}
    assert float(children[1]["duration"].removesuffix("s")) >= 0.05
    assert all(whole["startTime"] <= each["startTime"] <= each["endTime"] <= whole["endTime"] for each in children)
