"""What the model asks of whatever runs the weights: continue this text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from callagent.models.protocol import Usage


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    prompt: str
    """With the token that begins every text; engines that add it themselves take it off."""
    bos: str
    stops: tuple[str, ...]
    special: tuple[str, ...]
    """Control tokens that must be in the answer's text."""
    max_tokens: int
    temperature: float
    model: str = ""
    """The engine's own name for the weights; empty: the one it was opened with."""
    grammar: str = ""
    """GBNF that the answer must fit, where the engine can constrain it; empty: none."""

    @property
    def prompt_without_bos(self) -> str:
        return self.prompt.removeprefix(self.bos)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer; the last one has `finished`."""

    text: str = ""
    usage: Usage | None = None
    finished: bool = False


class CompletionEngine(Protocol):
    """Runs the weights; shared by all calls."""

    constrains: bool
    """It heeds a request's grammar."""

    def complete(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        """The continuation. Closing the iterator ends it. Raises `ProviderError`."""

    async def close(self) -> None: ...
