"""What the rules answer: words for the caller, or a function to call.

A function or a topic is chosen by the words that it shares with the caller's; rare words weigh more than common ones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

from callagent.json_values import JsonObject
from callagent.models.protocol import Tool
from callagent.models.rules.entities import (
    TENS,
    UNITS,
    Answer,
    find_answer,
    find_date,
    find_name,
    find_time,
    is_repeat_request,
    normalise,
)
from callagent.models.rules.situation import CallerUtterance, Filled, Situation, Topic, fill, lines_to_say

SAVE_ENTITIES = "save_entities"
"""The engine's name for the function that takes what a default step collects."""

_GREETING = "How can I help you?"
_STILL_THERE = "Are you still there?"
_NOT_TRANSFERRED = "I am sorry, I could not put you through."
_NOT_UNDERSTOOD = "I am sorry, I did not understand that. Could you say it in other words?"

_MIN_SCORE = 0.3
"""A function or topic must fit nearly a third of what the caller said."""
_SURE_SCORE = 0.6
"""A topic that fits so well is a question, whatever days or numbers are in it."""
_MIN_TOPIC_SCORE = 0.5
"""Topics are long: half of what the caller said must be in one."""
_MIN_EVIDENCE = 0.8
"""Weight of the words shared with a topic: one word that functions have too is not enough."""
_ARGUMENT_SCORE = 0.5
"""Added where the caller gave what a function asks for."""
_TOPIC_SENTENCES = 3
_WORD_ENTITIES = ("free_text", "address", "name_config")
"""Entity types that take the caller's words as they are."""

_TRANSFER_FAILED = re.compile(r"\b(?:transfer|handoff)\b.*\b(?:did not happen|failed)\b", re.IGNORECASE)
_SMALL_TALK = (
    (
        re.compile(
            r"\b(?:hold on|hang on|one (?:second|moment|minute)|(?:just|wait) a (?:second|sec|moment|minute))\b"
        ),
        "Of course, take your time.",
    ),
    (
        re.compile(r"\bare you (?:an? )?(?:real )?(?:robot|machine|bot|computer|ai|human|person)\b"),
        "I am an automated assistant.",
    ),
)
"""What a caller says on the side, and the answer."""
_ANOTHER = re.compile(r"\b(?:another|other|different) (?:day|date|time)\b")
_CALLER = r"\b(?:caller|user|customer|patient|guest|client|person|they)\b[^.;]{0,40}?\b"
_YES_TOOL = re.compile(
    rf"{_CALLER}(?:agrees?|says yes|confirms?|accepts?|approves?)\b|^[^:]*\b(?:agreed|confirmed|accepted|approved|yes):"
)
_NO_TOOL = re.compile(
    rf"{_CALLER}(?:says no|(?:does not|do not|did not|doesn't) (?:want|agree|confirm|accept|like)|"
    r"declines?|refuses?|rejects?|denies|disagrees?)\b|^[^:]*\b(?:rejected|declined|refused|denied|no):"
)
_FORBIDS = re.compile(r"(?:^|(?<=[.;!]))\s*(?:do not|don't|never)\b[^.;!]*[.;!]?|\[[^\]]*\]", re.IGNORECASE)
"""Sentences of a description that say when not to call the function, and its labels."""


_INSTRUCTS = re.compile(
    r"(?:^|[.!?] )(?:ask|tell|say|call|inform|let|do not|don't|proceed|confirm|use|check|offer)\b|"
    r"\b(?:the|this) (?:user|caller|customer|patient|guest)\b",
    re.IGNORECASE,
)
"""A function's result that is meant for a model."""


@dataclass(frozen=True, slots=True)
class Speak:
    """Words for the caller."""

    text: str
    understood: bool = field(default=True, compare=False)
    """False: the words are for a caller whose own words fitted nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function to call."""

    name: str
    arguments: JsonObject = field(default_factory=dict)


Choice = Speak | Call


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A function that may be called: all that it requires was said."""

    tool: Tool
    filled: Filled
    score: float


def choose(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """Return the answer to a request; `today` is used where the prompt names no date."""
    if _TRANSFER_FAILED.search(situation.notes):
        return Speak(f"{_NOT_TRANSFERRED} {situation.say or _GREETING}")
    if situation.results:
        return _after_results(situation, tools, today)
    if not situation.turn_begun:
        return Speak(situation.say or _GREETING)
    if not situation.utterance.strip():
        return Speak(situation.say or _STILL_THERE)
    if is_repeat_request(situation.utterance):
        return Speak(situation.last_words or _GREETING)
    return _react(situation, tools, today)


def _react(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """Answer the caller's words. The surest reading comes first, because the first that fits decides."""
    if reply := _small_talk(situation):
        return reply
    candidates = _candidates(situation, tools, today)
    best = max(candidates, key=lambda candidate: candidate.score, default=None)
    topic, topic_score = _best_topic(situation, tools)
    # A question that a topic surely answers goes before what a step collects: the caller wants to know something first.
    if topic and topic_score >= _SURE_SCORE and (not best or best.filled.specific or topic_score > best.score):
        return _follow(topic, situation, candidates)
    if call := _save(situation, tools, today):
        return call
    # A yes or a no goes before the words that descriptions share with it: it answers the agent's question.
    answer = find_answer(situation.utterance)
    if answer and (tool := _answering(candidates, answer)):
        return _call(tool)
    if tool := _correcting(candidates, situation, today):
        return _call(tool)
    if best and best.score >= _MIN_SCORE and best.score >= topic_score:
        return _call(best)
    if topic and topic_score >= _MIN_TOPIC_SCORE:
        return _follow(topic, situation, candidates)
    if answer and situation.say:
        return Speak(situation.say)
    words = situation.otherwise or situation.say or _NOT_UNDERSTOOD
    return _save_words(situation, tools) or Speak(words, understood=False)


def _after_results(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """Answer after a function has run: with its words for the caller, the next function, or the step's own words."""
    last = situation.results[-1]
    if spoken := lines_to_say(last.content):
        return Speak(spoken)
    # What was called since the caller spoke is not called again, or two functions could call each other for ever.
    remaining = [tool for tool in tools if not situation.called(tool)]
    if call := _condition(situation, remaining) or _save(situation, remaining, today):
        return call
    if last.name == SAVE_ENTITIES and _is_error(last.content):
        return Speak(situation.otherwise or situation.say or _NOT_UNDERSTOOD)
    if not situation.in_step and (call := _left_flow(situation, remaining, today)):
        return call
    return Speak(situation.say or _plain_sentence(last.content) or _GREETING)


def _left_flow(situation: Situation, tools: Sequence[Tool], today: date) -> Call | None:
    """Return the function that the caller's words surely ask for, now that they have led out of a flow.

    Inside the flow it was not offered: the project's rules offer functions that a step does not.
    """
    candidates = _candidates(situation, tools, today)
    best = max(candidates, key=lambda candidate: candidate.score, default=None)
    return _call(best) if best and best.score >= _SURE_SCORE else None


def _save(situation: Situation, tools: Sequence[Tool], today: date) -> Call | None:
    """Return the call that saves what a default step collects, as far as the caller has said it."""
    tool = next((tool for tool in tools if tool["function"]["name"] == SAVE_ENTITIES), None)
    if not tool or not situation.utterance:
        return None
    filled = fill(tool, _caller_utterance(situation, today))
    return Call(SAVE_ENTITIES, filled.arguments) if filled.arguments and filled.specific else None


def _save_words(situation: Situation, tools: Sequence[Tool]) -> Call | None:
    """Return the call that saves the caller's words as they are, where a default step asks for words."""
    name, kind = situation.next_entity
    if kind not in _WORD_ENTITIES or not any(tool["function"]["name"] == SAVE_ENTITIES for tool in tools):
        return None
    value = find_name(situation.utterance, asked=True) if kind == "name_config" else situation.utterance
    return Call(SAVE_ENTITIES, {name: value}) if value else None


def _condition(situation: Situation, tools: Sequence[Tool]) -> Call | None:
    """Return the call of a condition that waited for what has just been saved."""
    saved = {name for result in situation.results if result.name == SAVE_ENTITIES for name in result.arguments}
    for tool in tools:
        name = tool["function"]["name"]
        if situation.needs(name) & saved:
            return Call(name)
    return None


def _candidates(situation: Situation, tools: Sequence[Tool], today: date) -> list[_Candidate]:
    """Return the functions that may be called with what the caller said, and how well each fits."""
    # What a default step collects is saved by its own rule, not by the words of a description.
    offered = [tool for tool in tools if tool["function"]["name"] != SAVE_ENTITIES]
    scores = Keywords([_description(tool) for tool in offered]).scores(situation.utterance)
    utterance = _caller_utterance(situation, today)
    found = []
    for tool, score in zip(offered, scores, strict=True):
        # A condition that waits for entities follows from them, not from words.
        if situation.needs(tool["function"]["name"]):
            continue
        filled = fill(tool, utterance)
        if filled.complete:
            found.append(_Candidate(tool, filled, score + (_ARGUMENT_SCORE if filled.specific else 0)))
    return found


def _answering(candidates: Sequence[_Candidate], answer: Answer) -> _Candidate | None:
    """Return the function for a yes or a no; of several, the one that fits the words best.

    None where there is none, or where the words that go with the yes or no surely ask for another function.
    """
    fitting = [candidate for candidate in candidates if _meaning(candidate.tool) is answer]
    found = max(fitting, key=lambda candidate: candidate.score, default=None)
    surest = max((candidate.score for candidate in candidates), default=0.0)
    return found if found and (found.score >= surest or surest < _SURE_SCORE) else None


def _correcting(candidates: Sequence[_Candidate], situation: Situation, today: date) -> _Candidate | None:
    """Return the function for a no, where the caller names another day instead of saying no."""
    if not find_date(situation.utterance, situation.today or today) and not find_time(situation.utterance):
        return None
    fitting = (c for c in candidates if _meaning(c.tool) is Answer.NO and _ANOTHER.search(_description(c.tool)))
    return next(fitting, None)


def _small_talk(situation: Situation) -> Speak | None:
    utterance = situation.utterance.lower()
    return next((Speak(answer) for pattern, answer in _SMALL_TALK if pattern.search(utterance)), None)


def _meaning(tool: Tool) -> Answer | None:
    """Return whether the function's description makes it what happens on a yes or on a no; None: neither."""
    text = re.sub(r"[’`]", "'", _description(tool).lower())
    if _NO_TOOL.search(text):
        return Answer.NO
    return Answer.YES if _YES_TOOL.search(text) else None


def _description(tool: Tool) -> str:
    function = tool["function"]
    return f"{function['name'].replace('_', ' ')}: {_FORBIDS.sub(' ', function.get('description', ''))}"


def _best_topic(situation: Situation, tools: Sequence[Tool]) -> tuple[Topic | None, float]:
    """Return the topic that fits best, and its score."""
    topics = situation.topics
    # The functions' descriptions are weighed with the topics: words that functions have too say little of a topic.
    texts = [f"{topic.name} {topic.examples} {topic.content}" for topic in topics]
    keywords = Keywords([*texts, *map(_description, tools)])
    scores = keywords.scores(situation.utterance)
    evidence = keywords.evidence(situation.utterance)
    fitting = [index for index in range(len(topics)) if evidence[index] >= _MIN_EVIDENCE]
    best = max(fitting, key=lambda index: scores[index], default=None)
    return (topics[best], scores[best]) if best is not None else (None, 0.0)


def _follow(topic: Topic, situation: Situation, candidates: Sequence[_Candidate]) -> Choice:
    """Choose the function that the topic's instructions name most, else the topic's own words."""
    named = {candidate.tool["function"]["name"]: candidate for candidate in candidates}
    mentions = Counter(word for word in re.findall(r"\w+", topic.instructions) if word in named)
    if mentions:
        return _call(named[mentions.most_common(1)[0][0]])
    return Speak(_tell(topic, situation) or situation.otherwise or _NOT_UNDERSTOOD)


def _tell(topic: Topic, situation: Situation) -> str:
    """Return the topic's first sentences, then the question that the call was at."""
    sentences = re.split(r"(?<=[.!?])\s+", topic.content)[:_TOPIC_SENTENCES]
    return " ".join([*sentences, situation.say]).strip()


def _caller_utterance(situation: Situation, today: date) -> CallerUtterance:
    return CallerUtterance(situation.utterance, situation.today or today, situation.last_agent)


def _call(candidate: _Candidate) -> Call:
    return Call(candidate.tool["function"]["name"], candidate.filled.arguments)


def _is_error(content: str) -> bool:
    # The engine answers save_entities with what it took and what it refused: {"saved": {…}, "errors": {…}}.
    return bool(re.search(r"\"errors\": \{\"|\b(?:error|invalid|not valid|not a)\b", content, re.IGNORECASE))


def _plain_sentence(content: str) -> str:
    """Return a result that is a sentence for the caller; empty for data, and for instructions to a model."""
    text = content.strip()
    if not re.fullmatch(r"[A-Z][^{}<>\[\]_]*[.!?]", text) or _is_error(text):
        return ""
    instructs = _INSTRUCTS.search(text)
    return "" if instructs else text


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
    """Return the words that carry meaning: phrases and synonyms folded, endings cut, the rest dropped."""
    utterance = normalise(text.replace("_", " "))
    for pattern, replacement in _PHRASES:
        utterance = re.sub(pattern, replacement, utterance)
    # Contractions carry nothing: "I'm" is I, "don't" is not.
    found = (word.partition("'")[0].strip("-") for word in utterance.split() if not word.endswith("n't"))
    folded = (_fold(word) for word in found if word not in _STOP_WORDS and len(word) > 1 and not _is_number(word))
    return [word for word in folded if word and word not in _STOP_WORDS]


def _is_number(word: str) -> bool:
    # Numbers are arguments; what a description or a topic is about are other words.
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
    """Cut a stem further: `shipp` is `ship`; a silent e goes, so that `arriving` and `arrive` meet."""
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
    """Descriptions to choose among. A word weighs less the more of them have it, as in inverse document frequency."""

    def __init__(self, descriptions: Sequence[str]) -> None:
        self._documents = [frozenset(content_words(description)) for description in descriptions]
        self._frequency = Counter(word for document in self._documents for word in document)

    def scores(self, text: str) -> list[float]:
        """Return for each description the weighted share of the words of `text` that it has, from 0 to 1."""
        utterance = set(content_words(text))
        return [self._score(utterance, document) for document in self._documents]

    def evidence(self, text: str) -> list[float]:
        """Return for each description the weight of the words it shares with `text`: 1 for a word that only it has."""
        utterance = set(content_words(text))
        return [sum(map(self._weight, utterance & document)) for document in self._documents]

    def _score(self, utterance: Iterable[str], document: frozenset[str]) -> float:
        weights = {word: self._weight(word) for word in utterance}
        total = sum(weights.values())
        if not total:
            return 0.0
        return sum(weight for word, weight in weights.items() if word in document) / total

    def _weight(self, word: str) -> float:
        return 1 / (1 + math.log(max(1, self._frequency[word])))
