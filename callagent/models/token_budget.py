"""The limit of model tokens that a call may use, and the wrapper of a model that counts them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar

from callagent.errors import ProviderError
from callagent.models.protocol import Delta, LanguageModel, Message, ModelSettings, Tool, Usage, for_call


class TokensSpent(ProviderError):
    """The call has used all its tokens, so that its request is refused."""


class TokenBudget:
    """The tokens that one call has used, and their limit."""

    def __init__(self, tokens: int, on_refusal: Callable[[str], None]) -> None:
        """`on_refusal` is called once, with the reason, when the first request is refused."""
        self._tokens = tokens
        self._on_refusal: Callable[[str], None] | None = on_refusal
        self.spent = 0

    def check(self) -> None:
        """Raise `TokensSpent` if the call has reached its limit.

        A request that begins below the limit is answered in full: an answer that breaks off would confuse the caller.
        """
        if self.spent < self._tokens:
            return
        reason = f"the call has used {self.spent} tokens of language models; limits.model_tokens is {self._tokens}"
        on_refusal, self._on_refusal = self._on_refusal, None
        if on_refusal is not None:
            on_refusal(reason)
        raise TokensSpent(reason)

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answer."""
        self.spent += tokens


TOKEN_BUDGET: ContextVar[TokenBudget | None] = ContextVar("token_budget", default=None)
"""The budget of the call in whose context a model is asked; None outside of calls."""


CHARACTERS_PER_TOKEN = 4
"""Estimate for providers that report no token counts, and for answers that were cut before the counts came."""


class MeteredModel:
    """A wrapped model that counts the tokens of calls and refuses the requests of calls that have spent theirs."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def for_call(self) -> LanguageModel:
        return MeteredModel(for_call(self._model))

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        """Stream the wrapped model's answer. Raises `TokensSpent` as well as its errors."""
        budget = TOKEN_BUDGET.get()
        if budget is not None:
            budget.check()
        usage: Usage | None = None
        length = 0
        try:
            async with aclosing(self._model.stream(messages, tools, settings)) as deltas:
                async for delta in deltas:
                    usage = delta.usage or usage
                    length += _length(delta)
                    yield delta
        finally:
            # An answer that the caller interrupted counts as well: the provider charges for what it has written.
            if budget is not None:
                budget.spend(_estimate_tokens(messages, tools, length) if usage is None else _total_tokens(usage))

    async def close(self) -> None:
        await self._model.close()


def _length(delta: Delta) -> int:
    call = delta.tool_call
    return len(delta.text) + (0 if call is None else len(call.name) + len(call.arguments))


def _total_tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


def _estimate_tokens(messages: Sequence[Message], tools: Sequence[Tool], answer_length: int) -> int:
    request_length = sum(map(len, map(_text, messages))) + sum(map(len, map(_text, tools)))
    return (request_length + answer_length) // CHARACTERS_PER_TOKEN + 1


def _text(part: object) -> str:
    return json.dumps(part, ensure_ascii=False, default=str)
