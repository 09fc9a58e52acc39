"""A text cut where a speaker may pause, so that the first part can be heard while the rest is made."""

from __future__ import annotations

import re

LONGEST = 280
"""Characters; 20 s of speech."""
_END = re.compile(r"""[.!?…]+["”’')\]]*\s+(?=\S)""")
_TITLE = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|Nr|vs|approx|[A-Z]))\.$")
_CLAUSE = re.compile(r"[,;:—]\s+")


def sentences(text: str) -> list[str]:
    """The sentences of `text` in order; those that are too long, cut at a clause or a word."""
    found = [sentence for line in text.splitlines() for sentence in _split_line(line.strip())]
    return [part for sentence in found for part in _shorten(sentence)]


def _split_line(line: str) -> list[str]:
    parts, start = [], 0
    for match in _END.finditer(line):
        sentence = line[start : match.end()].rstrip()
        if line[match.end()].islower() or _TITLE.search(sentence):
            continue
        parts.append(sentence)
        start = match.end()
    return [part for part in [*parts, line[start:]] if part]


def _shorten(sentence: str) -> list[str]:
    parts = []
    while len(sentence) > LONGEST:
        clauses = [match.end() for match in _CLAUSE.finditer(sentence, 0, LONGEST)]
        at = clauses[-1] if clauses else sentence.rfind(" ", 1, LONGEST) + 1 or LONGEST
        parts.append(sentence[:at].rstrip())
        sentence = sentence[at:].lstrip()
    return [*parts, sentence] if sentence else parts
