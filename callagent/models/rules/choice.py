"""What the rules answer: words for the caller, or a function to call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from callagent.models.protocol import Tool
from callagent.models.rules.arguments import Filled, Hearing, fill
from callagent.models.rules.situation import Situation, Topic, said_in
from callagent.models.understanding import (
    Answer,
    Keywords,
    find_answer,
    find_date,
    find_name,
    find_time,
    is_repeat_request,
)

SAVE_ENTITIES = "save_entities"
"""The engine's name for the function that takes what a default step collects."""

_GREETING = "How can I help you?"
_STILL_THERE = "Are you still there?"
_NOT_TRANSFERRED = "I am sorry, I could not put you through."
_NOT_UNDERSTOOD = "I am sorry, I did not understand that. Could you say it in other words?"

_MIN_SCORE = 0.3
"""Nearly a third of what the caller said must fit a function or topic."""
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
    text: str
    understood: bool = field(default=True, compare=False)
    """False: the words are for a caller whose own words fitted nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


Choice = Speak | Call


@dataclass(frozen=True, slots=True)
class _Candidate:
    tool: Tool
    filled: Filled
    score: float


def choose(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    """One answer; `today` is used where the prompt names no date."""
    if _TRANSFER_FAILED.search(situation.notes):
        return Speak(f"{_NOT_TRANSFERRED} {situation.say or _GREETING}")
    if situation.results:
        return _after_results(situation, tools, today)
    if not situation.turn_begun:
        return Speak(situation.say or _GREETING)
    if not situation.said.strip():
        return Speak(situation.say or _STILL_THERE)
    if is_repeat_request(situation.said):
        return Speak(situation.last_words or _GREETING)
    return _react(situation, tools, today)


def _react(situation: Situation, tools: Sequence[Tool], today: date) -> Choice:
    if reply := _small_talk(situation):
        return reply
    candidates = _candidates(situation, tools, today)
    best = max(candidates, key=lambda candidate: candidate.score, default=None)
    topic, topic_score = _best_topic(situation, tools)
    if topic and topic_score >= _SURE_SCORE and (not best or best.filled.specific or topic_score > best.score):
        return _follow(topic, situation, candidates)
    if call := _save(situation, tools, today):
        return call
    answer = find_answer(situation.said)
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
    """A function has answered: its words for the caller, the next thing that the caller's words decide, or the step."""
    last = situation.results[-1]
    if spoken := said_in(last.content):
        return Speak(spoken)
    remaining = [tool for tool in tools if not situation.called(tool)]
    if call := _condition(situation, remaining) or _save(situation, remaining, today):
        return call
    if last.name == SAVE_ENTITIES and _is_error(last.content):
        return Speak(situation.otherwise or situation.say or _NOT_UNDERSTOOD)
    if not situation.in_step and (call := _left_flow(situation, remaining, today)):
        return call
    return Speak(situation.say or _plain_sentence(last.content) or _GREETING)


def _left_flow(situation: Situation, tools: Sequence[Tool], today: date) -> Call | None:
    """Words that led out of a flow may ask for a function that only the rules offer."""
    candidates = _candidates(situation, tools, today)
    best = max(candidates, key=lambda candidate: candidate.score, default=None)
    return _call(best) if best and best.score >= _SURE_SCORE else None


def _save(situation: Situation, tools: Sequence[Tool], today: date) -> Call | None:
    """What a default step collects, as far as the caller has said it."""
    tool = next((tool for tool in tools if tool["function"]["name"] == SAVE_ENTITIES), None)
    if not tool or not situation.said:
        return None
    filled = fill(tool, _hearing(situation, today))
    return Call(SAVE_ENTITIES, filled.arguments) if filled.arguments and filled.specific else None


def _save_words(situation: Situation, tools: Sequence[Tool]) -> Call | None:
    """Where a default step asks for words, words that mean nothing else are the answer."""
    name, kind = situation.next_entity
    if kind not in _WORD_ENTITIES or not any(tool["function"]["name"] == SAVE_ENTITIES for tool in tools):
        return None
    value = find_name(situation.said, asked=True) if kind == "name_config" else situation.said
    return Call(SAVE_ENTITIES, {name: value}) if value else None


def _condition(situation: Situation, tools: Sequence[Tool]) -> Call | None:
    """A condition that waited for what has just been saved."""
    saved = {name for result in situation.results if result.name == SAVE_ENTITIES for name in result.arguments}
    for tool in tools:
        name = tool["function"]["name"]
        if situation.needs(name) & saved:
            return Call(name)
    return None


def _candidates(situation: Situation, tools: Sequence[Tool], today: date) -> list[_Candidate]:
    """The functions that may be called with what the caller said, and how well each fits."""
    offered = [tool for tool in tools if tool["function"]["name"] != SAVE_ENTITIES]
    scores = Keywords([_description(tool) for tool in offered]).scores(situation.said)
    hearing = _hearing(situation, today)
    found = []
    for tool, score in zip(offered, scores, strict=True):
        # A condition that waits for entities follows from them, not from words.
        if situation.needs(tool["function"]["name"]):
            continue
        filled = fill(tool, hearing)
        if filled.complete:
            found.append(_Candidate(tool, filled, score + (_ARGUMENT_SCORE if filled.specific else 0)))
    return found


def _answering(candidates: Sequence[_Candidate], answer: Answer) -> _Candidate | None:
    """The function for a yes or a no; where several are, the one that fits the words best.

    None where the words that go with the yes or no surely ask for another function.
    """
    fitting = [candidate for candidate in candidates if _meaning(candidate.tool) is answer]
    found = max(fitting, key=lambda candidate: candidate.score, default=None)
    surest = max((candidate.score for candidate in candidates), default=0.0)
    return found if found and (found.score >= surest or surest < _SURE_SCORE) else None


def _correcting(candidates: Sequence[_Candidate], situation: Situation, today: date) -> _Candidate | None:
    """The function for a no, where the caller names another day instead of saying no."""
    if not find_date(situation.said, situation.today or today) and not find_time(situation.said):
        return None
    fitting = (c for c in candidates if _meaning(c.tool) is Answer.NO and _ANOTHER.search(_description(c.tool)))
    return next(fitting, None)


def _small_talk(situation: Situation) -> Speak | None:
    said = situation.said.lower()
    return next((Speak(answer) for pattern, answer in _SMALL_TALK if pattern.search(said)), None)


def _meaning(tool: Tool) -> Answer | None:
    """Whether the function is what happens on a yes or on a no."""
    text = re.sub(r"[’`]", "'", _description(tool).lower())
    if _NO_TOOL.search(text):
        return Answer.NO
    return Answer.YES if _YES_TOOL.search(text) else None


def _description(tool: Tool) -> str:
    function = tool["function"]
    return f"{function['name'].replace('_', ' ')}: {_FORBIDS.sub(' ', function.get('description', ''))}"


def _best_topic(situation: Situation, tools: Sequence[Tool]) -> tuple[Topic | None, float]:
    """The topic that fits best; words that the functions have too say little."""
    topics = situation.topics
    texts = [f"{topic.name} {topic.examples} {topic.content}" for topic in topics]
    keywords = Keywords([*texts, *map(_description, tools)])
    scores = keywords.scores(situation.said)
    evidence = keywords.evidence(situation.said)
    fitting = [index for index in range(len(topics)) if evidence[index] >= _MIN_EVIDENCE]
    best = max(fitting, key=lambda index: scores[index], default=None)
    return (topics[best], scores[best]) if best is not None else (None, 0.0)


def _follow(topic: Topic, situation: Situation, candidates: Sequence[_Candidate]) -> Choice:
    """The function that the topic's instructions name most, else the topic's own words."""
    named = {candidate.tool["function"]["name"]: candidate for candidate in candidates}
    mentions = Counter(word for word in re.findall(r"\w+", topic.instructions) if word in named)
    if mentions:
        return _call(named[mentions.most_common(1)[0][0]])
    return Speak(_tell(topic, situation) or situation.otherwise or _NOT_UNDERSTOOD)


def _tell(topic: Topic, situation: Situation) -> str:
    """The topic's first sentences, then the question that the call was at."""
    sentences = re.split(r"(?<=[.!?])\s+", topic.content)[:_TOPIC_SENTENCES]
    return " ".join([*sentences, situation.say]).strip()


def _hearing(situation: Situation, today: date) -> Hearing:
    return Hearing(situation.said, situation.today or today, situation.last_agent)


def _call(candidate: _Candidate) -> Call:
    return Call(candidate.tool["function"]["name"], candidate.filled.arguments)


def _is_error(content: str) -> bool:
    # The engine answers save_entities with what it kept and what not: {"saved": {…}, "errors": {…}}.
    return bool(re.search(r"\"errors\": \{\"|\b(?:error|invalid|not valid|not a)\b", content, re.IGNORECASE))


def _plain_sentence(content: str) -> str:
    """A result that is a sentence for the caller; instructions to a model and data are not."""
    text = content.strip()
    if not re.fullmatch(r"[A-Z][^{}<>\[\]_]*[.!?]", text) or _is_error(text):
        return ""
    instructs = _INSTRUCTS.search(text)
    return "" if instructs else text
