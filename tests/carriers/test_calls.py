"""One-time tokens."""

from __future__ import annotations

import pytest

from callagent.carriers.calls import TokenTable, TooManyTokens


def test_a_token_gives_back_what_was_kept_for_it_once() -> None:
    tokens: TokenTable[str] = TokenTable()
    token = tokens.issue("CA1", "info", now=0.0)
    assert tokens.redeem(token, "CA1", now=59.9) == "info"
    assert tokens.redeem(token, "CA1", now=59.9) is None


def test_a_token_of_another_call_is_spent_by_the_attempt() -> None:
    tokens: TokenTable[str] = TokenTable()
    token = tokens.issue("CA1", "info", now=0.0)
    assert tokens.redeem(token, "CA2", now=1.0) is None
    assert tokens.redeem(token, "CA1", now=1.0) is None


def test_a_token_lives_a_minute() -> None:
    tokens: TokenTable[str] = TokenTable()
    token = tokens.issue("CA1", "info", now=0.0)
    assert tokens.redeem(token, "CA1", now=60.0) is None


@pytest.mark.parametrize("token", ["", "x", "\ud800", "A" * 60000])
def test_a_token_nobody_issued_is_refused(token: str) -> None:
    tokens: TokenTable[str] = TokenTable()
    tokens.issue("CA1", "info", now=0.0)
    assert tokens.redeem(token, "CA1", now=1.0) is None
    assert len(tokens) == 1


def test_the_table_is_bounded_and_forgets_what_expired() -> None:
    tokens: TokenTable[str] = TokenTable(capacity=2)
    first = tokens.issue("CA1", "a", now=0.0)
    second = tokens.issue("CA2", "b", now=1.0)
    assert first != second
    with pytest.raises(TooManyTokens):
        tokens.issue("CA3", "c", now=2.0)
    tokens.issue("CA3", "c", now=60.5)
    assert tokens.redeem(second, "CA2", now=60.6) == "b"


def test_tokens_are_long_and_plain() -> None:
    token = TokenTable[str]().issue("CA1", "", now=0.0)
    assert len(token) >= 43
    assert token.replace("-", "").replace("_", "").isalnum()
