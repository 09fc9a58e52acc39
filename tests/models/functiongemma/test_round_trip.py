"""What is written is read again, and nothing that a model may say does harm."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.functiongemma import (
    FUNCTIONGEMMA,
    GEMMA4,
    StreamParser,
    TokenSet,
    format_value,
    neutralise,
    parse_expression,
    parse_output,
    render_prompt,
)
from tests.processor_time import processor_seconds

CONTROL = {*FUNCTIONGEMMA.control, *GEMMA4.control}
TEXTS = st.text().filter(lambda text: not any(token in text for token in CONTROL))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)
ARGUMENTS = st.dictionaries(TEXTS, VALUES)
PIECES = st.sampled_from(
    [*sorted(CONTROL), "call:", "call:f", "{", "}", "[", "]", ",", ":", "a", "1", "-", "true", "<", ">", " ", "\n", '"']
)
HOSTILE = st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join)


def same(left: Any, right: Any) -> bool:
    """Equal with types and order: 1 is not 1.0, -0.0 is not 0.0."""
    return json.dumps(left) == json.dumps(right)


@pytest.mark.parametrize("tokens", [FUNCTIONGEMMA, GEMMA4], ids=["functiongemma", "gemma4"])
@given(ARGUMENTS)
def test_arguments_are_read_as_they_were_written(tokens: TokenSet, arguments: dict[str, Any]) -> None:
    [call] = parse_expression(f"call:f{format_value(arguments, tokens=tokens)}")
    assert same(call.arguments, arguments)


@given(ARGUMENTS)
def test_calls_in_a_prompt_are_read_as_they_were_made(arguments: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    prompt = render_prompt([{"role": "assistant", "tool_calls": [call]}], [], generation_prompt=False)
    [read] = parse_output(prompt.partition("model\n")[2]).calls
    assert read.arguments == arguments


@given(HOSTILE, st.lists(st.integers(0, 200), max_size=5))
def test_parser_never_raises_and_chunks_do_not_matter(text: str, cuts: list[int]) -> None:
    parser, deltas, places = StreamParser(), [], sorted({0, *cuts, len(text)})
    for start, end in pairwise(places):
        deltas += parser.feed(text[start:end])
    deltas += parser.finish()
    whole = parse_output(text)
    assert [delta.tool_call for delta in deltas if delta.tool_call] == whole.calls
    assert "".join(delta.text for delta in deltas) == whole.content
    assert parser.truncated == whole.truncated


@given(HOSTILE)
def test_nothing_spoken_is_a_control_token(text: str) -> None:
    parser = StreamParser()
    for delta in [*parser.feed(text), *parser.finish()]:
        assert not any(token in delta.text for token in CONTROL)


@given(HOSTILE)
def test_strict_parser_raises_only_its_own_error(text: str) -> None:
    try:
        calls = parse_expression(text)
    except ValueError as error:
        assert "at position" in str(error)  # noqa: PT017
    else:
        assert all(call.name for call in calls)


@given(HOSTILE)
def test_neutralised_text_has_no_control_token(text: str) -> None:
    assert not any(token in neutralise(text) for token in CONTROL)


@given(TEXTS)
def test_text_without_control_tokens_stays_as_it_is(text: str) -> None:
    assert neutralise(text) == text


@pytest.mark.parametrize("text", ["<<bos>>", "<|<|tool>_call>", "<es<escape>cape>", "<<<eos>>>", "<|turn<bos>>"])
def test_dropped_brackets_bring_no_token_together(text: str) -> None:
    assert not any(token in neutralise(text) for token in CONTROL)


START, END, ESCAPE = FUNCTIONGEMMA.start_call, FUNCTIONGEMMA.end_call, FUNCTIONGEMMA.escape


@pytest.mark.parametrize(
    "unit",
    [
        START,
        f"{START}call:f{{a:{ESCAPE}",
        f"{START}call:f{{a:{ESCAPE}{END}",
        f'{START}call:f{{a:<|"|>{ESCAPE}',
        f"{START}call:f{{a:[",
        f"{START}call:f{{a:{{",
        f"{START}call:f{{}}{END}",
        END,
        ESCAPE,
        "<",
        "<start_function_cal",
        "[",
        "call:",
        "9",
        " ",
        '"',
        "<bos>a",
        "a:1,",
        "a:b,",
        "<|tool_call>call:a{b:1",
    ],
)
@pytest.mark.parametrize("prefix", ["", f"{START}call:f{{", f"{START}call:f{{a:{ESCAPE}"])
def test_a_megabyte_of_hostile_text_is_read_in_linear_time(unit: str, prefix: str) -> None:
    def seconds(size: int) -> float:
        text = (prefix + unit * (size // len(unit) + 1))[:size]
        return processor_seconds(lambda: parse_output(text), 1.0)

    # Against a small text: a slow machine does not make linear work quadratic.
    assert seconds(1 << 20) < max(1.0, 64 * seconds(1 << 16))


@pytest.mark.parametrize("unit", ["[", "{a:", "9", f"{ESCAPE}", "call:f", "call:f{}", " "])
def test_strict_parser_reads_a_megabyte_in_linear_time(unit: str) -> None:
    text = f"call:f{{a:{unit * ((1 << 20) // len(unit))}"

    def work() -> None:
        with pytest.raises(ValueError, match="at position"):
            parse_expression(text)

    assert processor_seconds(work, 1.0) < 1.0


@pytest.mark.parametrize("unit", ["<start_function_cal", f"{START}call:f{{a:{ESCAPE}b"])
def test_single_characters_are_read_in_linear_time(unit: str) -> None:
    def work(size: int) -> None:
        parser = StreamParser()
        for char in (unit * (size // len(unit) + 1))[:size]:
            parser.feed(char)
        parser.finish()

    small = processor_seconds(lambda: work(1 << 12))
    assert processor_seconds(lambda: work(1 << 16), 64 * small) < 64 * small


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, {1: 2}, object(), {"a": {1, 2}}, b"x"])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|strings"):
        format_value(value)


def test_depth_has_a_limit_in_both_directions() -> None:
    value: Any = []
    for _ in range(200):
        value = [value]
    with pytest.raises(ValueError, match="deeper than 100 levels"):
        format_value(value)
    with pytest.raises(ValueError, match="deeper than 100 levels"):
        parse_expression(f"call:f{{a:{'[' * 200}{']' * 200}}}")
