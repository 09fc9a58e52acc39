"""How a speech provider is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpeechProvider:
    api_key: str = field(default="", repr=False)
    base_url: str = ""
    """`https://…` or `http://…`, also for sockets; empty: the provider's own."""
    model: str = ""
    """Empty: the one that its file names."""
    voice: str = ""
    """The provider's own name of the voice used where none is asked for; empty: the one that its file names."""
    connect_timeout: float = 2.0
    """Seconds from the request to the answer's head, or to the open socket."""
    total_timeout: float = 30.0
    """Seconds from a request to the end of its answer."""

    def url(self, default: str, path: str, *, socket: bool = False) -> str:
        """`path` at the provider; of a socket with `ws` in place of `http`."""
        base = (self.base_url or default).rstrip("/")
        return ("ws" + base.removeprefix("http") if socket else base) + path


def fitting(words: Sequence[str], most: int, *, each: int = 1000, together: int = 10_000) -> list[str]:
    """The first `most` words that a provider takes: of at most `each` characters, `together` at most of all."""
    found: list[str] = []
    for word in words:
        if len(word) <= each and len(word) + sum(map(len, found)) <= together and len(found) < most:
            found.append(word)
    return found


def primary_language(language: str) -> str:
    """`en` of `en-US`."""
    return language.partition("-")[0].lower()
