"""How many tokens of language models a call may use."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from callagent.errors import ProviderError


class TokensSpent(ProviderError):
    """The call has used all its tokens: no model is asked for it any more."""


class TokenBudget:
    """One call's."""

    def __init__(self, tokens: int, on_refusal: Callable[[str], None]) -> None:
        """`on_refusal` is told why, once, when the first request is refused."""
        self._tokens = tokens
        self._on_refusal: Callable[[str], None] | None = on_refusal
        self.spent = 0

    def expect(self) -> None:
        """Raise `TokensSpent` unless one more request may be made. The request that passes the limit is answered."""
        if self.spent < self._tokens:
            return
        why = f"the call has used {self.spent} tokens of language models; limits.model_tokens is {self._tokens}"
        told, self._on_refusal = self._on_refusal, None
        if told is not None:
            told(why)
        raise TokensSpent(why)

    def spend(self, tokens: int) -> None:
        self.spent += tokens


TOKEN_BUDGET: ContextVar[TokenBudget | None] = ContextVar("token_budget", default=None)
"""That of the call in whose context a model is asked; None: there is no call."""
