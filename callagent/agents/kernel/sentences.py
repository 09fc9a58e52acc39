"""Cut a streamed answer into sentences, so that the first is spoken while the model writes the rest."""

from __future__ import annotations

import re

# An end mark, closing quotes or brackets and a space; a line break; or a full-width mark, which no space follows.
_END = re.compile(r"(?<=[.!?…])[\"')\]”’]*\s+|\n+|(?<=[。！？])")
# Periods that end no sentence: of abbreviations, initials ("J. Smith") and the numbers of list items ("1. Soup").
_NOT_AN_END = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|e\.g|i\.e|inc|ltd|co|approx|ext|dept|jr|sr)\.|(?:^|\s)[A-Za-z]\.|^\s*\d+\.)$",
    re.IGNORECASE,
)
MAX_SENTENCE = 400
"""Characters after which text without a sentence end is cut at a space: a voice must not wait for the whole answer."""


class SentenceSplitter:
    """Collects streamed text and returns each sentence as soon as it is complete."""

    def __init__(self) -> None:
        self._buffer = ""

    def feed(self, text: str) -> list[str]:
        """Add text and return the sentences that are complete with it."""
        self._buffer += text
        found = []
        while (sentence := self._next()) is not None:
            if sentence:
                found.append(sentence)
        return found

    def finish(self) -> list[str]:
        """Return what is left when the answer is over."""
        rest, self._buffer = self._buffer.strip(), ""
        return [rest] if rest else []

    def _next(self) -> str | None:
        for match in _END.finditer(self._buffer):
            head = self._buffer[: match.start()]
            # White space at the end of the buffer may go on in the next piece of the stream; `strip` removes it then.
            if "\n" not in match.group() and _NOT_AN_END.search(head):
                continue
            return self._cut(match.end())
        if len(self._buffer) > MAX_SENTENCE:
            space = self._buffer.rfind(" ", 1, MAX_SENTENCE)
            return self._cut(space if space > 0 else MAX_SENTENCE)
        return None

    def _cut(self, end: int) -> str:
        sentence, self._buffer = self._buffer[:end].strip(), self._buffer[end:]
        return sentence
