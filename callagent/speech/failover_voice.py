"""Voices in order of preference: where one fails, the next speaks the rest of the utterance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.failover import Lineup, Member, is_alarm
from callagent.log import get_logger
from callagent.speech.protocol import SpeechChunk, VoiceSettings, WordTime
from callagent.speech.ssml import plain
from callagent.speech.voice_cache import CachedVoice

Wanted = tuple[str, str]
"""Provider and that provider's name of the voice."""


@dataclass(frozen=True, slots=True)
class VoiceNames:
    """A wish travels as `provider/name` in `VoiceSettings.name`; a name without provider is the engine's own."""

    table: Mapping[Wanted, tuple[Wanted, ...]] = field(default_factory=dict)
    """What is asked for -> its likes of other providers."""

    def own(self, provider: str, name: str) -> str:
        """The name of the voice at `provider`; empty: its default."""
        wanted = split_voice_name(name)
        if not wanted[0]:
            return wanted[1]
        if wanted[0] == provider:
            return wanted[1]
        return next((own for other, own in self.table.get(wanted, ()) if other == provider), "")


def split_voice_name(name: str) -> Wanted:
    """`provider/name` in two; provider empty where there is none."""
    provider, slash, rest = name.partition("/")
    return (provider.lower(), rest) if slash else ("", name)


log = get_logger(__name__)

FIRST_AUDIO_SECONDS = 1.5
"""From the text to the first audio."""
FIRST_AUDIO_SECONDS_WITH_SPARE = 1.25
"""The same where another voice may be asked: the caller waits no longer than 1.5 s beyond what an answer takes."""
BEHIND_SECONDS = 1.0
"""A voice that has fallen so far behind what it should have spoken by now is too slow."""
CHARACTERS_PER_SECOND = 15.0
"""Pace of a voice that was not heard yet."""


class FailoverVoice:
    """The members' breakers and paces are shared by all calls."""

    def __init__(self, members: Sequence[Member[CachedVoice]], names: VoiceNames | None = None) -> None:
        self.lineup = Lineup("voice", members)
        self._names = names or VoiceNames()
        self._paces: dict[str, float] = {}

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        """As `Voice`; raises `ProviderError` when the last voice that may be asked has failed."""
        spoken = _Spoken(text)
        failure: ProviderError | None = None
        for member in self._order():
            if isinstance(failure, ProviderTimeout | ProviderRefused) and len(self.lineup.members) == 1:
                break
            own = replace(settings, name=self._names.own(member.name, settings.name))
            said = spoken.text_for(member.provider)
            if not member.provider.holds(said, own) and not self.lineup.may_ask(member, _now()):
                # What it said before can be said again without asking.
                continue
            attempt = self._attempt(member, said, own, spoken)
            try:
                async for chunk in attempt:
                    yield chunk
                return
            except ProviderError as error:
                failure = error
                self._note_failure(member, error, spoken)
                if not spoken.skip(self._pace(member)):
                    return
            finally:
                await attempt.aclose()  # type: ignore[attr-defined]
        self.lineup.outages += 1
        log.error("provider_outage", role=self.lineup.role)
        raise failure or ProviderError("no voice may be asked: all have failed lately")

    def _order(self) -> Sequence[Member[CachedVoice]]:
        """Who is asked; the only one that cannot be replaced is asked again after a lost connection."""
        members = self.lineup.members
        return members * 2 if len(members) == 1 and not members[0].embedded else members

    def has_voice(self, provider: str, name: str) -> bool:
        """Whether a member is the provider, or has a voice that stands for its voice `name`."""
        wanted = f"{provider}/{name}"
        names = [member.name for member in self.lineup.members]
        return provider.lower() in names or any(self._names.own(member, wanted) for member in names)

    async def prepare(self, texts: Iterable[str], settings: VoiceSettings) -> None:
        """Speak `texts` into the cache. Raises `ProviderError`."""
        for text in texts:
            async for _ in self.speak(text, settings):
                pass

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()

    async def _attempt(
        self, member: Member[CachedVoice], text: str, settings: VoiceSettings, spoken: _Spoken
    ) -> AsyncIterator[SpeechChunk]:
        spoken.begin()
        speaking = member.provider.speak(text, settings)
        spared = member is not self.lineup.members[-1]
        first = FIRST_AUDIO_SECONDS_WITH_SPARE if spared else FIRST_AUDIO_SECONDS
        patience = _Patience(self.lineup.is_patient(member), first)
        remembered = member.provider.holds(text, settings)
        try:
            while chunk := await patience.wait_for(speaking):
                if chunk.pcm and not patience.produced and not remembered:
                    member.breaker.succeed()
                yield spoken.shifted(chunk)
                spoken.add(chunk)
                patience.produced = spoken.seconds
        except TimeoutError:
            raise ProviderTimeout(f"the voice '{member.name}' was too slow") from None
        finally:
            await speaking.aclose()  # type: ignore[attr-defined]
        if spoken.seconds:
            pace = len(text) / spoken.seconds
            self._paces[member.name] = (self._pace(member) + pace) / 2

    def _pace(self, member: Member[CachedVoice]) -> float:
        """Characters in a second."""
        return self._paces.get(member.name, CHARACTERS_PER_SECOND)

    def _note_failure(self, member: Member[CachedVoice], error: ProviderError, spoken: _Spoken) -> None:
        # One that speaks too slowly would stutter through the next sentence as well.
        slow = isinstance(error, ProviderTimeout) and spoken.seconds > 0
        self.lineup.fail(member, error, _now(), trip=slow)
        level = log.error if is_alarm(error) else log.warning
        level("provider_failed", role="voice", provider=member.name, error=str(error), spoken=round(spoken.seconds, 2))


@dataclass(slots=True)
class _Patience:
    """How long a voice may still take, by what it has made."""

    endless: bool
    first: float
    """Seconds for the first audio."""
    produced: float = 0.0
    waited: float = 0.0

    async def wait_for(self, speaking: AsyncIterator[SpeechChunk]) -> SpeechChunk | None:
        """The next chunk, None at the end. Raises `TimeoutError`."""
        allowed = self.produced + BEHIND_SECONDS if self.produced else self.first
        begun = _now()
        async with asyncio.timeout(None if self.endless else max(allowed - self.waited, 0.0)):
            chunk = await anext(speaking, None)
        # The wait for the first audio is no stutter.
        self.waited = self.waited + _now() - begun if self.produced or not (chunk and chunk.pcm) else 0.0
        return chunk


@dataclass(slots=True)
class _Spoken:
    """What of an utterance has been said, over all voices."""

    text: str
    seconds: float = 0.0
    """Of the present voice."""
    _before: float = 0.0
    """Of the voices before it."""
    _words: list[WordTime] = field(default_factory=list)
    _rest: list[str] | None = None
    """Words left for the present voice; None: the whole text, markup and all."""

    def text_for(self, voice: CachedVoice) -> str:
        if self._rest is not None:
            return " ".join(self._rest)
        return self.text if voice.speaks_ssml else plain(self.text)

    def begin(self) -> None:
        self._before += self.seconds
        self.seconds = 0.0
        self._words.clear()

    def add(self, chunk: SpeechChunk) -> None:
        self.seconds += len(chunk.pcm) / 2 / SAMPLE_RATE
        self._words += chunk.words

    def shifted(self, chunk: SpeechChunk) -> SpeechChunk:
        """The chunk with its words' times from the start of the whole utterance."""
        return chunk.later(self._before)

    def skip(self, pace: float) -> bool:
        """Leave what was said to the present voice; whether there is anything left to be said."""
        words = self._rest if self._rest is not None else plain(self.text).split()
        self._rest = words[self._count(words, pace) :] if self.seconds else words
        return bool(self._rest)

    def _count(self, words: Sequence[str], pace: float) -> int:
        """How many were said: by their times where the voice gives them, else by its pace."""
        if self._words and [word.word for word in self._words] == list(words[: len(self._words)]):
            return sum(word.end <= self.seconds + 0.02 for word in self._words)
        characters = self.seconds * pace
        count = 0
        for word in words:
            if characters < (len(word) + 1) / 2:
                break
            characters -= len(word) + 1
            count += 1
        return count


def _now() -> float:
    return asyncio.get_running_loop().time()
