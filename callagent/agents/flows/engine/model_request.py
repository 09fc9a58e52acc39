"""One request to the model and its streamed answer: sentences for the caller, tool calls, times.

Before a sentence is spoken, the phrase filters and the output checks examine it. The checks find violations of
guardrails and safety filters that a list of words can detect; for all others the prompt states the same rules. Only
text of the model is checked, not what functions return.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache

from callagent.agents.actions import ModelAnswered
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.prompt import Prompt
from callagent.agents.flows.engine.tools import Toolset, build_tools
from callagent.agents.flows.format import PhraseFilter, SafetyFilters, Topic, same_language
from callagent.agents.kernel import SentenceSplitter
from callagent.models import Delta, LanguageModel, Message, ModelSettings, ToolCall, Usage

DEFAULT_TEMPERATURE = 0.4


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The messages, tools and settings of one request, made from one view of the conversation."""

    messages: list[Message]
    toolset: Toolset
    settings: ModelSettings


def build_request(conversation: Conversation, topics: list[Topic]) -> ModelRequest:
    """Build the request for the conversation as it stands; `topics` are those that the model is given."""
    # One Prompt for both: tools and messages hold many of the same texts, and each of them is resolved once.
    prompt = Prompt(conversation)
    toolset = build_tools(
        conversation.project,
        prompt.references(topics),
        conversation.position.flow,
        conversation.step,
        [name for name, result in conversation.entities.items() if result.valid],
        prompt.text,
    )
    return ModelRequest(prompt.messages(topics), toolset, model_settings(conversation))


def model_settings(conversation: Conversation) -> ModelSettings:
    """Return model, temperature and maximum length.

    The model that a step's file names wins over the settings of the variant, these over the settings of the channel,
    and these over the experimental settings of the position.
    """
    base, step = conversation.position_settings.model, conversation.step
    name, parameters = base.name, base.parameters
    experimental = conversation.project.experimental
    of_channel = experimental.models_by_channel.get(conversation.channel_type)
    of_variant = experimental.models_by_variant.get(conversation.variant or "")
    for override in (of_channel, of_variant):
        if override is not None:
            name, parameters = override.name or name, {**parameters, **override.parameters}
    if step is not None and step.model:
        name = step.model
    temperature, tokens = parameters.get("temperature"), parameters.get("max_tokens")
    return ModelSettings(
        model=conversation.settings.models.get(name, ""),
        temperature=float(temperature) if isinstance(temperature, int | float) else DEFAULT_TEMPERATURE,
        max_tokens=int(tokens) if isinstance(tokens, int) and tokens > 0 else None,
    )


def new_answer(conversation: Conversation, *, filtered: bool) -> Answer:
    """Begin an answer; `filtered`: whether phrase filters act on it."""
    project = conversation.project
    filters = project.voice.filters if filtered else ()
    guardrails = (each.name for each in project.guardrails)
    checks = OutputChecks(guardrails, conversation.safety, project.rules)
    now = asyncio.get_running_loop().time()
    return Answer(now, StreamFilter(filters, conversation.language), conversation.history.new_utterance(), checks)


async def stream_sentences(model: LanguageModel, answer: Answer, request: ModelRequest) -> AsyncGenerator[str, None]:
    """Yield the sentences to speak until the answer is over or a filter cuts it. Raises `ProviderError`."""
    loop = asyncio.get_running_loop()
    stream = model.stream(request.messages, request.toolset.schemas, request.settings)
    # Closed at once, also after a barge-in or a filter: an open stream costs tokens and holds a connection.
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            for sentence in answer.feed(delta, loop.time()):
                yield sentence
            # Text after a filtered phrase is never spoken, so the rest of the answer is not awaited.
            if answer.hit is not None:
                return
    for sentence in answer.finish():
        yield sentence


@dataclass(slots=True)
class Answer:
    """One streamed answer of the model, with its tool calls, violations and filter hit."""

    requested: float
    """Time of the request in seconds of the event loop's clock."""
    filter: StreamFilter
    utterance: int
    """Number of the utterance in the history."""
    checks: OutputChecks
    violations: list[Violation] = field(default_factory=list)
    """One for each sentence that was replaced or dropped."""
    calls: list[ToolCall] = field(default_factory=list)
    hit: FilterHit | None = None
    """The hit of the phrase filter that cut the answer; None: it was not cut."""
    error: str | None = None
    _first_token: float | None = None
    _usage: Usage | None = None
    _splitter: SentenceSplitter = field(default_factory=SentenceSplitter)

    def feed(self, delta: Delta, now: float) -> list[str]:
        """Add a piece of the answer and return the sentences that may be spoken now."""
        # A tool call counts as a first token, too.
        if self._first_token is None and (delta.text or delta.tool_call):
            self._first_token = now
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.tool_call is not None:
            self.calls.append(delta.tool_call)
        return self._filter(self._splitter.feed(delta.text)) if delta.text else []

    def finish(self) -> list[str]:
        """Return the last sentence; nothing where a filter has cut the answer."""
        return [] if self.hit else self._filter(self._splitter.finish())

    def model_answered(self, now: float) -> ModelAnswered:
        usage = self._usage or Usage(0, 0)
        return ModelAnswered(
            self.requested,
            self._first_token,
            now,
            usage.input_tokens,
            usage.output_tokens,
            self.error,
            [call.as_plain() for call in self.calls],
        )

    def _replace_violation(self, sentence: str) -> str:
        """Return the sentence, or the text to say in its place."""
        violation = self.checks.check(sentence) if sentence else None
        if violation is None:
            return sentence
        # The replacement is said once, however many sentences of the answer it replaces.
        repeated = any(violation.replacement == each.replacement for each in self.violations)
        self.violations.append(violation)
        return "" if repeated else violation.replacement

    def _filter(self, sentences: list[str]) -> list[str]:
        """Return the texts to say, up to the first filtered phrase."""
        spoken = []
        for sentence in sentences:
            self.hit = self.filter.check(sentence)
            text = self._replace_violation(self.hit.spoken if self.hit else sentence)
            if text:
                spoken.append(text)
            if self.hit:
                break
        return spoken


_LOOK_BACK = 200
"""Characters of already spoken text that a phrase may begin in."""


@dataclass(frozen=True, slots=True)
class FilterHit:
    filter: PhraseFilter
    spoken: str
    """The part of the sentence that is said nevertheless."""


class StreamFilter:
    """Searches one answer of the model for filtered phrases, sentence by sentence, before each is spoken."""

    def __init__(self, filters: Sequence[PhraseFilter], language: str | None) -> None:
        self._filters = [each for each in filters if same_language(each.language, language)]
        self._spoken = ""

    def check(self, sentence: str) -> FilterHit | None:
        """Return the hit that begins first, in this sentence or reaching into it; None: say the whole sentence."""
        text = f"{self._spoken} {sentence}" if self._spoken else sentence
        start = len(text) - len(sentence)
        best: tuple[int, FilterHit] | None = None
        for rule in self._filters:
            # Each sentence is searched together with the end of those before it: a phrase may span sentences.
            for pattern in rule.patterns:
                match = pattern.search(text, max(0, start - _LOOK_BACK))
                # A match that ends before this sentence was judged with the sentence before.
                if match is None or match.end() <= start:
                    continue
                cut = match.end() if rule.say_phrase else match.start()
                # Only a part of this sentence is left to say, because the text before it is spoken already.
                hit = FilterHit(rule, text[start : max(start, cut)].strip())
                if best is None or match.start() < best[0]:
                    best = (match.start(), hit)
        self._spoken = text
        return best[1] if best else None


REFUSAL = "I am sorry, I cannot talk about that."
AI_DISCLOSURE = "I am a virtual assistant."
LEAK_WORDS = 20
"""Length of a run of words that shows, if it is also in the instructions, that the answer reads them out."""

_TOOL_SYNTAX = re.compile(
    r"\{\{\s*(?:fn|ft|ho|twilio_sms|sms)\s*:|</?(?:tool_call|function_call|function)\b|<\|[\w ]+\|>"
    r"|\"(?:name|arguments|parameters)\"\s*:\s*[\"{]|\bfunctions\.\w+\s*\(|\bprint\(default_api",
    re.IGNORECASE,
)
_HUMAN = re.compile(
    r"\bI(?:'m| am) (?:not (?:a |an )?(?:AI|bot|robot|machine|virtual assistant|computer)\b"
    r"|(?:a |an )?(?:real |actual |living )?(?:human(?: being)?|real person)\b)",
    re.IGNORECASE,
)
_CATEGORIES: Mapping[str, tuple[str, str]] = {
    "violence": (
        r"how to (?:kill|murder|stab|poison|shoot) (?:some|a|your|him|her|them)"
        r"|\b(?:build|mak)(?:e|ing)? (?:a |the )?bombs?\b",
        r"\bbehead\w*|\bdismember\w*|\btortur\w+|\bmassacre\w*",
    ),
    "hate": (
        r"\b(?:subhuman|vermin|inferior race|master race|ethnic cleansing)\b",
        r"\b(?:go back to your (?:own )?country|those people are (?:all )?(?:criminals|animals|dirty))\b",
    ),
    "sexual": (
        r"\b(?:blowjob|handjob|cunnilingus|fellatio|orgasm\w*|masturbat\w+|pornograph\w+)\b",
        r"\b(?:erotic\w*|nude pictures?|have sex with|sexy|horny)\b",
    ),
    "self_harm": (
        r"how to (?:kill|hang|cut|hurt) yourself|(?:you should|just) (?:kill|hurt|cut) yourself",
        r"\b(?:lethal dose|painless way to die|ways? to end (?:your|my) life)\b",
    ),
}
"""Category -> expressions that are refused at every level, and those that are refused from `medium` on."""
_COMPILED = {
    name: (re.compile(always, re.IGNORECASE), re.compile(more, re.IGNORECASE))
    for name, (always, more) in _CATEGORIES.items()
}


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    """`safety.<category>`, or the guardrail's name."""
    replacement: str
    """Text said in place of the sentence; empty: nothing."""


class OutputChecks:
    """The checks of one request: which rules hold, and the instructions that must not be read out."""

    def __init__(self, guardrails: Iterable[str], safety: SafetyFilters | None, instructions: str) -> None:
        self._guardrails = frozenset(guardrails)
        self._safety = safety
        self._instructions = instructions

    def check(self, sentence: str) -> Violation | None:
        """Return the violation in a sentence of the model; None: it may be said."""
        # Checked without any guardrail: the syntax of a tool call must never be spoken.
        if _TOOL_SYNTAX.search(sentence):
            return Violation("tool_call_integrity", "")
        if "ai_identity" in self._guardrails and _HUMAN.search(sentence):
            return Violation("ai_identity", AI_DISCLOSURE)
        # Lists of words find plain cases only; the rules in the prompt cover those that need judgement.
        for name, level in (self._safety.levels if self._safety else {}).items():
            always, more = _COMPILED[name]
            if always.search(sentence) or (level != "lenient" and more.search(sentence)):
                return Violation(f"safety.{name}", REFUSAL)
        # Checked last, because it is the most expensive: each run of words is looked up.
        if "jailbreak_defence" in self._guardrails and self._leaks(sentence):
            return Violation("jailbreak_defence", REFUSAL)
        return None

    def _leaks(self, sentence: str) -> bool:
        runs = _word_runs(sentence)
        # A sentence shorter than LEAK_WORDS has no runs, and cannot leak.
        return bool(runs) and not _cached_word_runs(self._instructions).isdisjoint(runs)


@lru_cache(maxsize=32)
def _cached_word_runs(instructions: str) -> frozenset[tuple[str, ...]]:
    """Return the word runs of a project's rules; cached, because they are the same in every call."""
    return frozenset(_word_runs(instructions))


def _word_runs(text: str) -> list[tuple[str, ...]]:
    """Return all runs of `LEAK_WORDS` words of a text."""
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[start : start + LEAK_WORDS]) for start in range(len(words) - LEAK_WORDS + 1)]
