"""How well an utterance fits a description: shared words, rarer ones counting more."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from callagent.models.understanding.numbers import TENS, UNITS
from callagent.models.understanding.yes_no import normalise

_STOP_WORDS_TEXT = """
okay ok sure yep yup nope fine great perfect alright
another other else different nothing anything something everything a about all also am an and any are as at be been
but by call called caller calls can could customer did do does doing done for from function get gets give given
gives go got had has have having he hello help her hey hi him his how i if in into is it its just know let like may
me might more my need needs no not now of off oh on one or our ours out over please really s say said saying says
she should since so some such t tell than thank thanks that the their them then there these they thing this those to
too tool up us use used user uses very want wanted wants was we well were what when where which who whom whose why
will with would yes yeah you your yours
"""
_STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())
# Phrases that mean more than their words; each becomes one word.
_PHRASES = (
    (r"\b(?:that(?:'s| is| was|'ll be| will be)|this is) (?:all|everything|it)\b(?! right)", " goodbye "),
    (r"\b(?:bye[ -]?bye|good ?bye|bye|see you|hang up|have a (?:nice|good) (?:day|one))\b", " goodbye "),
    (r"\b(?:customer (?:service|support)|real (?:person|human)|human being|somebody real|live agent)\b", " person "),
    (r"\b(?:money back|get (?:a )?refunded)\b", " refund "),
    (r"\b(?:how much|what (?:does it|do you|is the) (?:cost|charge))\b", " price "),
    (r"\b(?:opening (?:hours|times)|business hours|are you (?:\w+ )?(?:open|closed))\b", " open hour "),
    (r"\bwhat time\b", " hour "),
    (r"\b(?:never|not|hasn't|didn't) (?:arrived?|come|came|turn(?:ed)? up|show(?:ed)? up)\b", " lost "),
    (r"\b(?:don't|do not|doesn't|does not|can't|cannot|haven't) (?:have|know|find|remember|got)\b", " unavailable "),
    (r"\bwhere(?:'s| is| are)? (?:my|the|our|it|a)\b", " status "),
    (r"\b(?:put me through|connect me|speak (?:to|with)|talk (?:to|with))\b", " transfer "),
    (r"\bset up\b", " book "),
)  # fmt: skip
_GROUPS = (
    "parcel package packet shipment",
    "person human agent operator representative advisor adviser colleague somebody someone staff manager rep",
    "transfer handoff connect escalate forward speak talk",
    "book reserve schedule arrange booking reservation",
    "change move reschedule rearrange rebook modify update instead",
    "cancel cancellation call-off",
    "price cost fee charge rate tariff",
    "refund reimburse reimbursement compensation",
    "lost missing stolen disappeared vanished",
    "damaged broken smashed crushed",
    "complain complaint claim",
    "order purchase",
    "track tracking trace",
    "deliver delivery delivered delivering",
    "number digit code",
    "open opening opened",
    "close closing closed shut",
    "hour time schedule-time",
    "pay payment paid",
    "invoice bill billing",
    "address street",
    "phone telephone mobile cell",
    "goodbye farewell finish finished",
    "check look find search",
    "appointment visit",
    "send mail post ship",
)
"""Words that mean the same; the first stands for all."""


def content_words(text: str) -> list[str]:
    """Words that carry meaning: phrases and synonyms folded, endings cut, the rest dropped."""
    said = normalise(text.replace("_", " "))
    for pattern, replacement in _PHRASES:
        said = re.sub(pattern, replacement, said)
    # Contractions carry nothing: "I'm" is I, "don't" is not.
    found = (word.partition("'")[0].strip("-") for word in said.split() if not word.endswith("n't"))
    folded = (_fold(word) for word in found if word not in _STOP_WORDS and len(word) > 1 and not _is_number(word))
    return [word for word in folded if word and word not in _STOP_WORDS]


def _is_number(word: str) -> bool:
    """Numbers are arguments; what a description or a topic is about are other words."""
    return word in UNITS or word in TENS or word.isdigit()


def _fold(word: str) -> str:
    stem = _stem(word)
    return _SYNONYMS.get(word) or _SYNONYMS.get(stem) or stem


def _stem(word: str) -> str:
    if word.isdigit() or len(word) < 4:
        return word
    for ending, replacement in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss") and len(word) - len(ending) + len(replacement) >= 3:
            return _undouble(word.removesuffix(ending) + replacement)
    return word.removesuffix("e") if len(word) > 4 else word


def _undouble(stem: str) -> str:
    """`shipp` is `ship`; a silent e goes, so that `arriving` and `arrive` meet."""
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeiouls":
        return stem[:-1]
    return stem.removesuffix("e") if len(stem) > 4 else stem


_SYNONYMS = {
    form: _stem(group.split()[0])
    for group in _GROUPS
    for word in group.split()
    # "missing" is lost, "missed" is not.
    for form in {word, _stem(word) if not word.endswith("ing") else word}
}


class Keywords:
    """Descriptions to choose among; a word that all of them share counts least."""

    def __init__(self, descriptions: Sequence[str]) -> None:
        self._documents = [frozenset(content_words(description)) for description in descriptions]
        self._frequency = Counter(word for document in self._documents for word in document)

    def scores(self, text: str) -> list[float]:
        """For each description, from 0 (nothing shared) to 1 (every word of `text` is in it, and only there)."""
        said = set(content_words(text))
        return [self._score(said, document) for document in self._documents]

    def evidence(self, text: str) -> list[float]:
        """For each description, the weight of the words it shares with `text`: 1 for a word that only it has."""
        said = set(content_words(text))
        return [sum(map(self._weight, said & document)) for document in self._documents]

    def _score(self, said: Iterable[str], document: frozenset[str]) -> float:
        weights = {word: self._weight(word) for word in said}
        total = sum(weights.values())
        if not total:
            return 0.0
        return sum(weight for word, weight in weights.items() if word in document) / total

    def _weight(self, word: str) -> float:
        return 1 / (1 + math.log(max(1, self._frequency[word])))
