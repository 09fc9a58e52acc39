"""The choice of an answer by rules: words for the caller, or a function to call.

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
from callagent.models.rules.situation import (
    CallerUtterance,
    FilledArguments,
    Situation,
    Topic,
    fill_arguments,
    lines_to_say,
)

SAVE_ENTITIES = "save_entities"
"""The engine's name for the function that saves the entities which a default step collects."""

_GREETING = "How can I help you?"
_STILL_THERE = "Are you still there?"
_NOT_TRANSFERRED = "I am sorry, I could not put you through."
_NOT_UNDERSTOOD = "I am sorry, I did not understand that. Could you say it in other words?"

_MIN_SCORE = 0.3
"""Share of the caller's words that a function or topic must contain."""
_SURE_SCORE = 0.6
"""From this share on a topic surely fits, even if the words also name days or numbers."""
_MIN_TOPIC_SCORE = 0.5
"""Share of the caller's words that a topic must contain: topics are long, so more than for a function."""
_MIN_EVIDENCE = 0.8
"""Least weight of the words shared with a topic: one word that functions have too is not enough."""
_ARGUMENT_SCORE = 0.5
"""Added to a function's score if the caller gave one of its arguments."""
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
"""Remarks of callers that need no function, and their answers."""
_ANOTHER = re.compile(r"\b(?:another|other|different) (?:day|date|time)\b")
_CALLER = r"\b(?:caller|user|customer|patient|guest|client|person|they)\b[^.;]{0,40}?\b"
_YES_TOOL = re.compile(
    rf"{_CALLER}(?:agrees?|says yes|confirms?|accepts?|approves?)\b|^[^:]*\b(?:agreed|confirmed|accepted|approved|yes):"
)
_NO_TOOL = re.compile(
    rf"{_CALLER}(?:says no|(?:does not|do not|did not|doesn't) (?:want|agree|confirm|accept|like)|"
    r"declines?|refuses?|rejects?|denies|disagrees?)\b|^[^:]*\b(?:rejected|declined|refused|denied|no):"
)
_PROHIBITION = re.compile(r"(?:^|(?<=[.;!]))\s*(?:do not|don't|never)\b[^.;!]*[.;!]?|\[[^\]]*\]", re.IGNORECASE)
"""Sentences of a description that say when not to call the function, and its labels in brackets."""

_INSTRUCTION = re.compile(
    r"(?:^|[.!?] )(?:ask|tell|say|call|inform|let|do not|don't|proceed|confirm|use|check|offer)\b|"
    r"\b(?:the|this) (?:user|caller|customer|patient|guest)\b",
    re.IGNORECASE,
)
"""Words that show that a function's result is an instruction to a model."""


@dataclass(frozen=True, slots=True)
class Speak:
    """Words for the caller."""

    text: str
    understood: bool = field(default=True, compare=False)
    """False: the caller's words fitted neither a function nor a topic."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function to call."""

    name: str
    arguments: JsonObject = field(default_factory=dict)


Choice = Speak | Call


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A function that may be called, because the caller gave all that it requires."""

    tool: Tool
    filled: FilledArguments
    score: float


def choose(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """Return the answer to a request; `today` is used where the prompt names no date."""
    if _TRANSFER_FAILED.search(situation.notes):
        return Speak(f"{_NOT_TRANSFERRED} {situation.say or _GREETING}")
    if situation.results:
        return _answer_after_results(situation, tools, today)
    if not situation.turn_begun:
        return Speak(situation.say or _GREETING)
    if not situation.utterance.strip():
        return Speak(situation.say or _STILL_THERE)
    if is_repeat_request(situation.utterance):
        return Speak(situation.last_words or _GREETING)
    return _react(situation, tools, today)


def _react(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """Answer the caller's words. The first interpretation that fits decides, so the surest ones come first."""
    if reply := _small_talk(situation):
        return reply
    candidates = _candidates(situation, tools, today)
    best = max(candidates, key=lambda candidate: candidate.score, default=None)
    topic, topic_score = _best_topic(situation, tools)
    # A question that a topic surely answers comes before the entities of a step: the caller wants to know that first.
    if topic and topic_score >= _SURE_SCORE and (not best or best.filled.specific or topic_score > best.score):
        return _answer_from_topic(topic, situation, candidates)
    if call := _save_call(situation, tools, today):
        return call
    # A yes or no comes before the other words of the utterance, because it answers the agent's question.
    answer = find_answer(situation.utterance)
    if answer and (tool := _yes_no_candidate(candidates, answer)):
        return _to_call(tool)
    if tool := _other_day_candidate(candidates, situation, today):
        return _to_call(tool)
    if best and best.score >= _MIN_SCORE and best.score >= topic_score:
        return _to_call(best)
    if topic and topic_score >= _MIN_TOPIC_SCORE:
        return _answer_from_topic(topic, situation, candidates)
    if answer and situation.say:
        return Speak(situation.say)
    words = situation.otherwise or situation.say or _NOT_UNDERSTOOD
    return _save_words_call(situation, tools) or Speak(words, understood=False)


def _answer_after_results(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """Answer after a function has run: with its words for the caller, another function, or the step's words."""
    last = situation.results[-1]
    if spoken := lines_to_say(last.content):
        return Speak(spoken)
    # No function is called twice for one utterance; otherwise two functions could lead to each other for ever.
    remaining = [tool for tool in tools if not situation.has_called(tool)]
    if call := _condition_call(situation, remaining) or _save_call(situation, remaining, today):
        return call
    if last.name == SAVE_ENTITIES and _is_error(last.content):
        return Speak(situation.otherwise or situation.say or _NOT_UNDERSTOOD)
    if not situation.in_step and (call := _call_after_flow(situation, remaining, today)):
        return call
    return Speak(situation.say or _plain_sentence(last.content) or _GREETING)


def _call_after_flow(situation: Situation, tools: Sequence[Tool], today: date) -> Call | None:
    """Return a call of the function that the words which led out of a flow surely ask for.

    Inside the flow it was not offered, because the project's rules offer functions that a step does not.
    """
    candidates = _candidates(situation, tools, today)
    best = max(candidates, key=lambda candidate: candidate.score, default=None)
    return _to_call(best) if best and best.score >= _SURE_SCORE else None


def _save_call(situation: Situation, tools: Sequence[Tool], today: date) -> Call | None:
    """Return the call that saves the entities of a default step which the caller has given."""
    tool = next((tool for tool in tools if tool["function"]["name"] == SAVE_ENTITIES), None)
    if not tool or not situation.utterance:
        return None
    filled = fill_arguments(tool, _caller_utterance(situation, today))
    return Call(SAVE_ENTITIES, filled.arguments) if filled.arguments and filled.specific else None


def _save_words_call(situation: Situation, tools: Sequence[Tool]) -> Call | None:
    """Return the call that saves the caller's words as they are, where a default step asks for words."""
    name, kind = situation.next_entity
    if kind not in _WORD_ENTITIES or not any(tool["function"]["name"] == SAVE_ENTITIES for tool in tools):
        return None
    value = find_name(situation.utterance, asked=True) if kind == "name_config" else situation.utterance
    return Call(SAVE_ENTITIES, {name: value}) if value else None


def _condition_call(situation: Situation, tools: Sequence[Tool]) -> Call | None:
    """Return the call of a condition that needs an entity which has just been saved."""
    saved = {name for result in situation.results if result.name == SAVE_ENTITIES for name in result.arguments}
    for tool in tools:
        name = tool["function"]["name"]
        if situation.needed_entities(name) & saved:
            return Call(name)
    return None


def _candidates(situation: Situation, tools: Sequence[Tool], today: date) -> list[_Candidate]:
    """Return the functions whose required arguments the caller gave, with their scores."""
    # Entities of a default step are saved by a rule of their own, not by the words of a description.
    offered = [tool for tool in tools if tool["function"]["name"] != SAVE_ENTITIES]
    scores = Keywords([_description(tool) for tool in offered]).scores(situation.utterance)
    utterance = _caller_utterance(situation, today)
    found = []
    for tool, score in zip(offered, scores, strict=True):
        # A condition that needs entities is called when these are saved, not for its words.
        if situation.needed_entities(tool["function"]["name"]):
            continue
        filled = fill_arguments(tool, utterance)
        if filled.complete:
            found.append(_Candidate(tool, filled, score + (_ARGUMENT_SCORE if filled.specific else 0)))
    return found


def _yes_no_candidate(candidates: Sequence[_Candidate], answer: Answer) -> _Candidate | None:
    """Return the best candidate whose function is for a yes or no, as `answer` says.

    None if there is none, or if the other words of the utterance surely ask for another function.
    """
    fitting = [candidate for candidate in candidates if _yes_or_no(candidate.tool) is answer]
    found = max(fitting, key=lambda candidate: candidate.score, default=None)
    surest = max((candidate.score for candidate in candidates), default=0.0)
    return found if found and (found.score >= surest or surest < _SURE_SCORE) else None


def _other_day_candidate(candidates: Sequence[_Candidate], situation: Situation, today: date) -> _Candidate | None:
    """Return the candidate for a no if the caller names another day or time in place of saying no."""
    if not find_date(situation.utterance, situation.today or today) and not find_time(situation.utterance):
        return None
    fitting = (c for c in candidates if _yes_or_no(c.tool) is Answer.NO and _ANOTHER.search(_description(c.tool)))
    return next(fitting, None)


def _small_talk(situation: Situation) -> Speak | None:
    utterance = situation.utterance.lower()
    return next((Speak(answer) for pattern, answer in _SMALL_TALK if pattern.search(utterance)), None)


def _yes_or_no(tool: Tool) -> Answer | None:
    """Return the answer, yes or no, after which the description says to call the function; None: neither."""
    text = re.sub(r"[’`]", "'", _description(tool).lower())
    if _NO_TOOL.search(text):
        return Answer.NO
    return Answer.YES if _YES_TOOL.search(text) else None


def _description(tool: Tool) -> str:
    function = tool["function"]
    return f"{function['name'].replace('_', ' ')}: {_PROHIBITION.sub(' ', function.get('description', ''))}"


def _best_topic(situation: Situation, tools: Sequence[Tool]) -> tuple[Topic | None, float]:
    """Return the topic that fits best, and its score."""
    topics = situation.topics
    # Functions' descriptions count as documents, too, so that words which they share with a topic weigh less.
    texts = [f"{topic.name} {topic.examples} {topic.content}" for topic in topics]
    keywords = Keywords([*texts, *map(_description, tools)])
    scores = keywords.scores(situation.utterance)
    evidence = keywords.evidence(situation.utterance)
    fitting = [index for index in range(len(topics)) if evidence[index] >= _MIN_EVIDENCE]
    best = max(fitting, key=lambda index: scores[index], default=None)
    return (topics[best], scores[best]) if best is not None else (None, 0.0)


def _answer_from_topic(topic: Topic, situation: Situation, candidates: Sequence[_Candidate]) -> Choice:
    """Return a call of the function that the topic's instructions name most often, else the topic's words."""
    named = {candidate.tool["function"]["name"]: candidate for candidate in candidates}
    mentions = Counter(word for word in re.findall(r"\w+", topic.instructions) if word in named)
    if mentions:
        return _to_call(named[mentions.most_common(1)[0][0]])
    return Speak(_topic_words(topic, situation) or situation.otherwise or _NOT_UNDERSTOOD)


def _topic_words(topic: Topic, situation: Situation) -> str:
    """Return the topic's first sentences and the step's question, at which the call stood."""
    sentences = re.split(r"(?<=[.!?])\s+", topic.content)[:_TOPIC_SENTENCES]
    return " ".join([*sentences, situation.say]).strip()


def _caller_utterance(situation: Situation, today: date) -> CallerUtterance:
    return CallerUtterance(situation.utterance, situation.today or today, situation.last_agent)


def _to_call(candidate: _Candidate) -> Call:
    return Call(candidate.tool["function"]["name"], candidate.filled.arguments)


def _is_error(content: str) -> bool:
    # The engine answers save_entities with the values that it saved and refused: {"saved": {…}, "errors": {…}}.
    return bool(re.search(r"\"errors\": \{\"|\b(?:error|invalid|not valid|not a)\b", content, re.IGNORECASE))


def _plain_sentence(content: str) -> str:
    """Return a function's result if it is a sentence for the caller; empty for data and instructions to a model."""
    text = content.strip()
    if not re.fullmatch(r"[A-Z][^{}<>\[\]_]*[.!?]", text) or _is_error(text):
        return ""
    return "" if _INSTRUCTION.search(text) else text


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
# Phrases whose meaning is not in their single words; each becomes one word.
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
"""Groups of synonyms; all become the first word."""


def content_words(text: str) -> list[str]:
    """Return the stems of the words that carry meaning; phrases and synonyms become one word each."""
    utterance = normalise(text.replace("_", " "))
    for pattern, replacement in _PHRASES:
        utterance = re.sub(pattern, replacement, utterance)
    # The ends of contractions carry no meaning: "I'm" counts as "I", and "don't" is dropped.
    found = (word.partition("'")[0].strip("-") for word in utterance.split() if not word.endswith("n't"))
    folded = (_fold(word) for word in found if word not in _STOP_WORDS and len(word) > 1 and not _is_number(word))
    return [word for word in folded if word and word not in _STOP_WORDS]


def _is_number(word: str) -> bool:
    # Numbers are arguments and do not show which function or topic is meant.
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
    """Shorten a stem: `shipp` to `ship`, and by a silent e, so that `arriving` and `arrive` have the same stem."""
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeiouls":
        return stem[:-1]
    return stem.removesuffix("e") if len(stem) > 4 else stem


_SYNONYMS = {
    form: _stem(group.split()[0])
    for group in _GROUPS
    for word in group.split()
    # The stem of "missing" is left out, because "missed" does not mean lost.
    for form in {word, _stem(word) if not word.endswith("ing") else word}
}


class Keywords:
    """Descriptions to choose among. As in inverse document frequency, a word weighs less the more of them have it."""

    def __init__(self, descriptions: Sequence[str]) -> None:
        self._documents = [frozenset(content_words(description)) for description in descriptions]
        self._frequency = Counter(word for document in self._documents for word in document)

    def scores(self, text: str) -> list[float]:
        """Return, for each description, the weighted share (0 to 1) of the words of `text` that are in it."""
        utterance = set(content_words(text))
        return [self._score(utterance, document) for document in self._documents]

    def evidence(self, text: str) -> list[float]:
        """Return, for each description, the weight of the words shared with `text`; a word in no other one weighs 1."""
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
