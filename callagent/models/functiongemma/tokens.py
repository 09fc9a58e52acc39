"""The control tokens of FunctionGemma and of Gemma 4: the grammar between them is the same."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from functools import cached_property

TRIGGER = "You are a model that can do function calling with the following functions"
"""FunctionGemma calls functions only where this sentence stands before them."""


@dataclass(frozen=True)
class TokenSet:
    """The control tokens of one model family."""

    bos: str
    eos: str
    start_turn: str
    end_turn: str
    start_declaration: str
    end_declaration: str
    start_call: str
    end_call: str
    start_response: str
    end_response: str
    escape: str
    """Stands on both sides of every string."""
    developer: str
    """The role of the turn that holds instructions and declarations."""
    trigger: str
    """A sentence that must stand before the declarations; empty: none."""

    @cached_property
    def control(self) -> tuple[str, ...]:
        """Every token that a model must not see in somebody's words, nor a caller hear."""
        return astuple(self)[:11]

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends an answer. Not `end_call`: a parallel call may follow."""
        return self.end_turn, self.eos, self.start_response


FUNCTIONGEMMA = TokenSet(
    bos="<bos>",
    eos="<eos>",
    start_turn="<start_of_turn>",
    end_turn="<end_of_turn>",
    start_declaration="<start_function_declaration>",
    end_declaration="<end_function_declaration>",
    start_call="<start_function_call>",
    end_call="<end_function_call>",
    start_response="<start_function_response>",
    end_response="<end_function_response>",
    escape="<escape>",
    developer="developer",
    trigger=TRIGGER,
)
GEMMA4 = TokenSet(
    bos="<bos>",
    eos="<eos>",
    start_turn="<|turn>",
    end_turn="<turn|>",
    start_declaration="<|tool>",
    end_declaration="<tool|>",
    start_call="<|tool_call>",
    end_call="<tool_call|>",
    start_response="<|tool_response>",
    end_response="<tool_response|>",
    escape='<|"|>',
    developer="system",
    trigger="",
)
TOKEN_SETS = (FUNCTIONGEMMA, GEMMA4)

_ALL = sorted({token for tokens in TOKEN_SETS for token in tokens.control})
_CONTROL = re.compile("|".join(map(re.escape, _ALL)))


def neutralise(text: str) -> str:
    """The text without control tokens: their angle brackets are dropped.

    For everything that is not ours: what a caller said, what a function returned.
    """
    if "<" not in text:
        return text
    text = _CONTROL.sub(lambda token: token[0][1:-1], text)
    # Dropped brackets may have brought a new token together; a space can be part of none.
    return _CONTROL.sub(lambda token: token[0].replace("<", " ").replace(">", " "), text)
