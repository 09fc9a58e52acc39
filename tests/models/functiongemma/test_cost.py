"""What the format costs beside the weights: prompt and answer of a step with ten functions."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from callagent.models.functiongemma import parse_output, render_prompt


def step() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    properties = {
        "day": {"type": "string", "description": "The day on which the parcel should come"},
        "part": {"type": "string", "enum": ["morning", "afternoon", "evening"], "description": "Part of the day"},
        "count": {"type": "integer", "description": "How many parcels"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["day"]}
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "description": "Books a delivery", "parameters": parameters}}
        for n in range(10)
    ]
    messages = [
        {"role": "system", "content": "Today is Friday. Ask for the day of the delivery."},
        {"role": "user", "content": "tomorrow afternoon would be great"},
    ]
    return messages, tools


ANSWER = "<start_function_call>call:f3{day:<escape>tomorrow<escape>,part:<escape>afternoon<escape>}<end_function_call>"


def seconds() -> float:
    """Processor time of one request's prompt and answer."""
    messages, tools = step()
    started = time.thread_time()
    for _ in range(20):
        render_prompt(messages, tools)
        assert len(parse_output(ANSWER, tools).calls) == 1
    return (time.thread_time() - started) / 20


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer costs more than the code")
def test_prompt_and_answer_of_ten_functions_cost_less_than_a_millisecond() -> None:
    # The best of many, in processor time: what else the machine does is not measured.
    assert min(seconds() for _ in range(30)) < 0.001


if __name__ == "__main__":
    print(f"{min(seconds() for _ in range(100)) * 1000:.3f} ms")  # noqa: T201
