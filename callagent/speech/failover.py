"""Recognisers in order of preference: where one fails, the next hears the utterance again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.failover import Lineup, Member, is_alarm
from callagent.log import get_logger
from callagent.speech.protocol import (
    Recognizer,
    RecognizerSettings,
    RecognizerStream,
    SpeechChunk,
    Transcript,
    VoiceSettings,
    WordTime,
)
from callagent.speech.text_processing import plain
from callagent.speech.voice_wrappers import CachedVoice

log = get_logger(__name__)

FINAL_SECONDS = 4.0
"""Time to wait after `finish()` for a final transcript where nobody else can be asked: on a busy machine a late one is
worth more than the guess so far, and the caller hears a word of patience meanwhile."""
FINAL_SECONDS_WITH_SPARE = 1.25
"""The same where another recogniser may be asked, less than 2 s after the end of speech: the caller is not to wait
longer than 1.5 s beyond what an answer takes."""
PREROLL_BYTES = 25 * FRAME_BYTES
MAX_AUDIO = 60 * 2 * SAMPLE_RATE
"""Bytes of one utterance kept for the next recogniser."""


@dataclass(slots=True)
class _Utterance:
    """What is owed a final transcript."""

    number: int
    settings: RecognizerSettings
    audio: bytearray
    finished: bool = False
    understood: str = ""
    tried: set[int] = field(default_factory=set)
    """Places of the members that failed on it."""
    cut: bool = False
    """Its only recogniser lost the connection once."""


class FailoverRecognizer:
    """The members' breakers are shared by all calls."""

    final_seconds = FINAL_SECONDS

    def __init__(self, members: Sequence[Member[Recognizer]]) -> None:
        self.lineup = Lineup("recognizer", members)

    async def open(
        self, on_transcript: Callable[[Transcript], None], on_outage: Callable[[], None] = lambda: None
    ) -> FailoverStream:
        """Returns at once; the first recogniser is opened meanwhile. `on_outage`: nobody could hear an utterance."""
        return FailoverStream(self.lineup, on_transcript, on_outage)

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()


class WatchedRecognizer:
    """One call's view of the line-up: the call is told when nobody could hear an utterance."""

    def __init__(self, recognizer: FailoverRecognizer, on_outage: Callable[[], None]) -> None:
        self._recognizer = recognizer
        self._on_outage = on_outage

    async def open(self, on_transcript: Callable[[Transcript], None]) -> FailoverStream:
        return await self._recognizer.open(on_transcript, self._on_outage)

    async def close(self) -> None:
        """The recogniser is shared; whoever opened it closes it."""


class FailoverStream:
    """One call's ear. Each `finish()` is answered, with what was understood last where every recogniser fails."""

    def __init__(
        self,
        lineup: Lineup[Recognizer],
        on_transcript: Callable[[Transcript], None],
        on_outage: Callable[[], None] = lambda: None,
    ) -> None:
        self._lineup = lineup
        self._on_transcript = on_transcript
        self._on_outage = on_outage
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._place: int | None = None
        """Of the member that listens, or is being opened; None: nobody does."""
        self._stream: RecognizerStream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._numbers: dict[int, int] = {}
        """The stream's number of an utterance -> ours."""
        self._begun = 0
        """Of the present stream."""
        self._count = 0
        self._before = bytearray()
        self._hearing: _Utterance | None = None
        self._owed: deque[_Utterance] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: tuple[int, int | None] | None = None
        """What the deadline is for: the number of an utterance, and who owes its transcript."""
        self._closed = False
        self._choose()

    # the call's side

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            self._hearing.audio += pcm[: MAX_AUDIO - len(self._hearing.audio)]
        self._before += pcm
        if len(self._before) > 2 * PREROLL_BYTES:
            del self._before[:-PREROLL_BYTES]
        if self._stream is not None:
            self._stream.feed(pcm)
            if error := getattr(self._stream, "failed", None):
                self._switch(error)

    def begin(self, settings: RecognizerSettings) -> None:
        self._count += 1
        before = self._before[-PREROLL_BYTES:]
        self._hearing = _Utterance(self._count, settings, before)
        if not self._owed:
            self._prefer()
        self._owed.append(self._hearing)
        if self._stream is not None:
            self._begin(self._hearing)

    def finish(self) -> None:
        if self._hearing is None:
            return
        self._hearing.finished = True
        self._hearing = None
        self._before.clear()
        if self._stream is not None:
            self._stream.finish()
        if self._place is None:
            self._give_up()
        self._arm()

    def close(self) -> None:
        self._closed = True
        self._owed.clear()
        self._hearing = None
        self._drop()
        self._arm()

    # who listens

    def _prefer(self) -> None:
        """Between utterances: back to a better recogniser once its breaker lets us."""
        better = self._lineup.admit(self._loop.time(), before=self._place)
        if better is not None:
            self._drop()
            self._open(better)

    def _choose(self) -> None:
        tried = self._owed[0].tried if self._owed else set()
        place = self._lineup.admit(self._loop.time(), without=tried)
        if place is None:
            self._give_up()
        else:
            self._open(place)

    def _open(self, place: int) -> None:
        self._place = place
        self._opening = self._loop.create_task(self._join(place))

    async def _join(self, place: int) -> None:
        member = self._lineup.members[place]

        def transcribed(transcript: Transcript) -> None:
            if self._place == place and self._stream is stream:
                self._take(transcript)

        stream: RecognizerStream | None = None
        try:
            stream = await member.provider.open(transcribed)
        except ProviderError as error:
            self._switch(error)
            return
        if self._closed or self._place != place:
            stream.close()
            return
        self._stream = stream
        self._numbers.clear()
        self._begun = 0
        for utterance in self._owed:
            self._begin(utterance)
            for at in range(0, len(utterance.audio), FRAME_BYTES):
                stream.feed(bytes(utterance.audio[at : at + FRAME_BYTES]))
            if utterance.finished:
                stream.finish()
        if not self._owed:
            stream.feed(bytes(self._before[-PREROLL_BYTES:]))
        self._arm()

    def _drop(self) -> None:
        if self._opening is not None and self._opening is not _current_task():
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()
        self._opening = self._stream = self._place = None

    def _switch(self, error: ProviderError) -> None:
        """The member that listens has failed."""
        if self._place is None or self._closed:
            return
        member = self._lineup.members[self._place]
        # Frames come in the wire's context, not in the call's.
        self._context.run(self._lineup.fail, member, error, self._loop.time())
        level = log.error if is_alarm(error) else log.warning
        level("provider_failed", role="recognizer", provider=member.name, error=str(error))
        # A lost connection is opened again where there is nobody else to ask.
        again = len(self._lineup.members) == 1 and not isinstance(error, ProviderTimeout | ProviderRefused)
        for utterance in self._owed:
            if utterance.cut or not again:
                utterance.tried.add(self._place)
            utterance.cut = True
        self._drop()
        self._choose()

    def _give_up(self) -> None:
        """Nobody can be asked: what was understood stands."""
        finished = [utterance for utterance in self._owed if utterance.finished]
        for utterance in finished:
            self._owed.remove(utterance)
            self._lineup.outages += 1
            log.error("provider_outage", role="recognizer")
            # Not from inside finish(): the caller of finish() is not ready for the answer.
            self._loop.call_soon(self._tell, Transcript(utterance.understood, True, utterance.number))
            if not utterance.understood:
                self._loop.call_soon(self._on_outage)
        self._arm()

    # utterances

    def _begin(self, utterance: _Utterance) -> None:
        assert self._stream is not None
        self._begun += 1
        self._numbers[self._begun] = utterance.number
        self._stream.begin(utterance.settings)

    def _take(self, transcript: Transcript) -> None:
        number = self._numbers.get(transcript.utterance, 0)
        utterance = next((one for one in self._owed if one.number == number), None)
        if utterance is None or self._place is None:
            return
        utterance.understood = transcript.text or utterance.understood
        if transcript.final:
            self._owed.remove(utterance)
            self._lineup.members[self._place].breaker.succeed()
            self._arm()
        self._on_transcript(replace(transcript, utterance=number))

    def _arm(self) -> None:
        """Run one deadline: of the oldest finished utterance at the member that listens. Later ones do not delay it."""
        oldest = next((utterance.number for utterance in self._owed if utterance.finished), None)
        patient = self._place is None or self._lineup.is_patient(self._lineup.members[self._place])
        awaited = None if oldest is None or patient else (oldest, self._place)
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if awaited is None else self._loop.call_later(self._allowed, self._miss)

    @property
    def _allowed(self) -> float:
        """Seconds for the final transcript."""
        return FINAL_SECONDS if self._place == len(self._lineup.members) - 1 else FINAL_SECONDS_WITH_SPARE

    def _miss(self) -> None:
        self._deadline = self._awaited = None
        self._switch(ProviderTimeout(f"no final transcript within {self._allowed:g} s"))

    def _tell(self, transcript: Transcript) -> None:
        if not self._closed:
            self._on_transcript(transcript)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


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
