from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callagent.models.functiongemma.local_worker import Worker, _whole_characters


def answered(texts: list[str], *, cancel_after: int | None = None) -> tuple[list[dict[str, Any]], bool]:
    """What is written, and whether the generation was closed."""
    written: list[dict[str, Any]] = []
    closed = False

    def generate(request: dict[str, Any]) -> Generator[str, None, None]:
        nonlocal closed
        try:
            for number, text in enumerate(texts):
                if number == cancel_after:
                    worker.cancel(request["number"])
                yield text
        finally:
            closed = True

    worker = Worker(generate, len, written.append)
    worker.answer({"number": 1, "prompt": "abc", "stops": ["<eos>", "<end_of_turn>"]})
    return written, closed


def test_texts_are_written_and_counted() -> None:
    assert answered(["a", "", "b"]) == ([{"text": "a"}, {"text": "b"}, {"done": [3, 2]}], True)


def test_answer_ends_behind_a_stop_token_however_it_is_cut() -> None:
    written, closed = answered(["a<e", "o", "s>", "never"])
    assert [each.get("text") for each in written] == ["a<e", "o", "s>", None]
    assert closed


def test_cancelled_answer_ends_before_the_next_text() -> None:
    written, closed = answered(["a", "b", "c"], cancel_after=1)
    assert [each.get("text") for each in written] == ["a", None]
    assert closed


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_characters_come_whole_from_single_bytes(text: str) -> None:
    got, rest = "", b""
    for byte in text.encode():
        found, rest = _whole_characters(rest + bytes([byte]))
        got += found
    assert (got, rest) == (text, b"")


@given(st.binary())
def test_bytes_that_are_no_text_do_not_pile_up(data: bytes) -> None:
    rest = b""
    for byte in data:
        _, rest = _whole_characters(rest + bytes([byte]))
        assert len(rest) < 4
