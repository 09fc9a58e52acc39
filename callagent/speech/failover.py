"""Line-ups: where a recogniser fails the next hears the utterance again, where a voice fails the next speaks the rest.

Members stand in order of preference; a breaker each, shared by all calls, decides who may be asked
(`callagent.failover`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, field, replace

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.failover import Lineup, Member, is_alarm
from callagent.log import get_logger
from callagent.speech import protocol
from callagent.speech.text_processing import plain
from callagent.speech.voice_wrappers import CachedVoice

log = get_logger(__name__)

FINAL_SECONDS = 4.0
"""Time to wait after `finish()` for a final transcript where nobody else can be asked. On a busy machine a late one is
better than the last partial transcript, and the caller hears a filler meanwhile."""
FINAL_SECONDS_WITH_SPARE = 1.25
"""The same where another recogniser may be asked: with it, the caller waits at most 1.5 s more than usual."""
MAX_AUDIO = 60 * 2 * SAMPLE_RATE
"""Bytes of one utterance kept for the next recogniser."""


def _log_failure(role: str, name: str, error: ProviderError, **details: float) -> None:
    """Log a member's failure: as an error where somebody has to act, since no other provider makes up for that."""
    level = log.error if is_alarm(error) else log.warning
    level("provider_failed", role=role, provider=name, error=str(error), **details)


def _may_retry(error: ProviderError) -> bool:
    """Return whether the only member is to be asked again: after a lost connection, not after silence or a refusal."""
    return not isinstance(error, ProviderTimeout | ProviderRefused)


@dataclass(slots=True)
class _Utterance:
    """An utterance whose final transcript is owed."""

    number: int
    settings: protocol.RecognizerSettings
    audio: bytearray
    """All of it, pre-roll included, to be given to the next recogniser."""
    finished: bool = False
    understood: str = ""
    """The latest transcript of any member, which becomes the final one where all fail."""
    tried: set[int] = field(default_factory=set)
    """Places of the members that failed on it."""
    retried: bool = False
    """Whether its only recogniser lost the connection once already."""


class FailoverRecognizer:
    """Recognisers in order of preference."""

    final_seconds = FINAL_SECONDS

    def __init__(self, members: Sequence[Member[protocol.Recognizer]]) -> None:
        self.lineup = Lineup("recognizer", members)

    async def open(
        self, on_transcript: Callable[[protocol.Transcript], None], on_outage: Callable[[], None] = lambda: None
    ) -> FailoverStream:
        """Return at once; the first recogniser is opened meanwhile. `on_outage`: no member understood an utterance."""
        return FailoverStream(self.lineup, on_transcript, on_outage)

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()


class WatchedRecognizer:
    """One call's view of the line-up; `on_outage` is called when no member understood an utterance."""

    def __init__(self, recognizer: FailoverRecognizer, on_outage: Callable[[], None]) -> None:
        self._recognizer = recognizer
        self._on_outage = on_outage

    async def open(self, on_transcript: Callable[[protocol.Transcript], None]) -> FailoverStream:
        return await self._recognizer.open(on_transcript, self._on_outage)

    async def close(self) -> None:
        """Do nothing: the recogniser is shared, and closed by its owner."""


class FailoverStream:
    """One call's stream over a line-up.

    Each `finish()` is answered by exactly one final transcript: where every recogniser fails, with the last partial
    one. A member that fails is closed, and the next one is given the audio of every utterance that is still owed, from
    its beginning. At most one member listens at any time.
    """

    def __init__(
        self,
        lineup: Lineup[protocol.Recognizer],
        on_transcript: Callable[[protocol.Transcript], None],
        on_outage: Callable[[], None] = lambda: None,
    ) -> None:
        self._lineup = lineup
        self._on_transcript = on_transcript
        self._on_outage = on_outage
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._place: int | None = None
        """Place in the line-up of the member that listens or is being opened; None: nobody does."""
        self._stream: protocol.RecognizerStream | None = None
        """The open stream of that member; None while it is being opened."""
        self._opening: asyncio.Task[None] | None = None
        self._numbers: dict[int, int] = {}
        """The member's number of an utterance -> ours. Each stream counts from 1 anew."""
        self._begun = 0
        """Utterances begun on the present stream."""
        self._count = 0
        self._before = bytearray()
        self._hearing: _Utterance | None = None
        """The utterance between `begin()` and `finish()`, also the last one of `_owed`."""
        self._owed: deque[_Utterance] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: tuple[int, int | None] | None = None
        """What the deadline is for: an utterance's number, and the place of the member that owes its transcript."""
        self._closed = False
        self._choose()

    # RecognizerStream

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            self._hearing.audio += pcm[: MAX_AUDIO - len(self._hearing.audio)]
        self._before += pcm
        # Cut seldom, not with every frame: this runs 50 times a second for each call.
        if len(self._before) > 2 * protocol.PREROLL_BYTES:
            del self._before[: -protocol.PREROLL_BYTES]
        if self._stream is not None:
            self._stream.feed(pcm)
            # Streams of providers report a failure in an attribute, as nobody waits for their result.
            if error := getattr(self._stream, "failed", None):
                self._switch(error)

    def begin(self, settings: protocol.RecognizerSettings) -> None:
        self._count += 1
        self._hearing = _Utterance(self._count, settings, self._before[-protocol.PREROLL_BYTES :])
        # Only while nothing is owed: a change of members would have to transcribe what is owed once more.
        if not self._owed:
            self._return_to_better()
        self._owed.append(self._hearing)
        if self._stream is not None:
            self._begin_on_stream(self._hearing)

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
        self._arm_deadline()

    def close(self) -> None:
        self._closed = True
        self._owed.clear()
        self._hearing = None
        self._drop_member()
        self._arm_deadline()

    # Which member listens

    def _return_to_better(self) -> None:
        """Go back to a member that is preferred to the present one, once its breaker admits it."""
        better = self._lineup.admit(self._loop.time(), before=self._place)
        if better is not None:
            self._drop_member()
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
        """Open the member's stream and give it every utterance that is owed."""
        member = self._lineup.members[place]

        def transcribed(transcript: protocol.Transcript) -> None:
            # A stream that was given up may still call back.
            if self._place == place and self._stream is stream:
                self._receive_transcript(transcript)

        stream: protocol.RecognizerStream | None = None
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
            self._begin_on_stream(utterance)
            for at in range(0, len(utterance.audio), FRAME_BYTES):
                stream.feed(bytes(utterance.audio[at : at + FRAME_BYTES]))
            if utterance.finished:
                stream.finish()
        if not self._owed:
            # The stream has no pre-roll of its own yet.
            stream.feed(bytes(self._before[-protocol.PREROLL_BYTES :]))
        self._arm_deadline()

    def _drop_member(self) -> None:
        # A member that fails to open calls this from its own task, which must not cancel itself.
        if self._opening is not None and self._opening is not _current_task():
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()
        self._opening = self._stream = self._place = None

    def _switch(self, error: ProviderError) -> None:
        """Replace the member that listens, which has failed."""
        if self._place is None or self._closed:
            return
        member = self._lineup.members[self._place]
        # Frames come in the wire's context; the failure is to be recorded in the call's.
        self._context.run(self._lineup.fail, member, error, self._loop.time())
        _log_failure("recognizer", member.name, error)
        again = len(self._lineup.members) == 1 and _may_retry(error)
        for utterance in self._owed:
            if utterance.retried or not again:
                utterance.tried.add(self._place)
            utterance.retried = True
        self._drop_member()
        self._choose()

    def _give_up(self) -> None:
        """Answer what is owed with what was understood, as no member can be asked."""
        finished = [utterance for utterance in self._owed if utterance.finished]
        for utterance in finished:
            self._owed.remove(utterance)
            self._lineup.outages += 1
            log.error("provider_outage", role="recognizer")
            # Not from inside finish(): the caller of finish() is not ready for the answer.
            self._loop.call_soon(self._emit, protocol.Transcript(utterance.understood, True, utterance.number))
            if not utterance.understood:
                self._loop.call_soon(self._on_outage)
        self._arm_deadline()

    # Utterances

    def _begin_on_stream(self, utterance: _Utterance) -> None:
        assert self._stream is not None
        self._begun += 1
        self._numbers[self._begun] = utterance.number
        self._stream.begin(utterance.settings)

    def _receive_transcript(self, transcript: protocol.Transcript) -> None:
        number = self._numbers.get(transcript.utterance, 0)
        utterance = next((one for one in self._owed if one.number == number), None)
        if utterance is None or self._place is None:
            return
        utterance.understood = transcript.text or utterance.understood
        if transcript.final:
            self._owed.remove(utterance)
            self._lineup.members[self._place].breaker.succeed()
            self._arm_deadline()
        self._on_transcript(replace(transcript, utterance=number))

    def _arm_deadline(self) -> None:
        """Run one deadline, of the oldest finished utterance at the member that listens.

        Utterances that are finished later do not put it off: only another utterance or another member does.
        """
        oldest = next((utterance.number for utterance in self._owed if utterance.finished), None)
        patient = self._place is None or self._lineup.is_patient(self._lineup.members[self._place])
        awaited = None if oldest is None or patient else (oldest, self._place)
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if awaited is None else self._loop.call_later(self._final_seconds, self._miss_deadline)

    @property
    def _final_seconds(self) -> float:
        return FINAL_SECONDS if self._place == len(self._lineup.members) - 1 else FINAL_SECONDS_WITH_SPARE

    def _miss_deadline(self) -> None:
        self._deadline = self._awaited = None
        self._switch(ProviderTimeout(f"no final transcript within {self._final_seconds:g} s"))

    def _emit(self, transcript: protocol.Transcript) -> None:
        if not self._closed:
            self._on_transcript(transcript)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No loop runs in this thread.
        return None


VoiceName = tuple[str, str]
"""Provider and that provider's name of the voice."""


@dataclass(frozen=True, slots=True)
class VoiceNames:
    """Which voices of different providers stand for one another.

    A wish travels as `provider/name` in `VoiceSettings.name`; a name without provider is the engine's own.
    """

    table: Mapping[VoiceName, tuple[VoiceName, ...]] = field(default_factory=dict)
    """The voice that is asked for -> similar voices of other providers."""

    def own(self, provider: str, name: str) -> str:
        """Return the name of the voice at `provider`; empty: its default."""
        wanted = split_voice_name(name)
        if wanted[0] in ("", provider):
            return wanted[1]
        return next((own for other, own in self.table.get(wanted, ()) if other == provider), "")


def split_voice_name(name: str) -> VoiceName:
    """Return the two parts of `provider/name`; the provider is empty where there is none."""
    provider, slash, rest = name.partition("/")
    return (provider.lower(), rest) if slash else ("", name)


FIRST_AUDIO_SECONDS = 1.5
"""Time from the text to the first audio, where nobody else can be asked."""
FIRST_AUDIO_SECONDS_WITH_SPARE = 1.25
"""The same where another voice may be asked: with it, the caller waits at most 1.5 s more than usual."""
MAX_SECONDS_BEHIND = 1.0
"""A voice that has fallen so far behind what it should have spoken by now is too slow."""
CHARACTERS_PER_SECOND = 15.0
"""Pace assumed of a voice that has not spoken yet."""


class FailoverVoice:
    """Voices in order of preference; their breakers and paces are shared by all calls."""

    def __init__(self, members: Sequence[Member[CachedVoice]], names: VoiceNames | None = None) -> None:
        self.lineup = Lineup("voice", members)
        self._names = names or VoiceNames()
        self._paces: dict[str, float] = {}

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        """Speak as a `Voice`; raises `ProviderError` when the last voice that may be asked has failed."""
        progress = _Progress(text)
        for member in self._order():
            if progress.failure is not None and len(self.lineup.members) == 1 and not _may_retry(progress.failure):
                break
            own = replace(settings, name=self._names.own(member.name, settings.name))
            rest = progress.text_for(member.provider)
            # What a member has in its memory can be spoken without asking it.
            if not member.provider.holds(rest, own) and not self.lineup.may_ask(member, _now()):
                continue
            async with aclosing(self._attempt(member, rest, own, progress)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if progress.failure is None or not progress.skip_spoken(self._pace(member)):
                return
        self.lineup.outages += 1
        log.error("provider_outage", role=self.lineup.role)
        raise progress.failure or ProviderError("no voice may be asked: all have failed lately")

    def has_voice(self, provider: str, name: str) -> bool:
        """Return whether a member is the provider, or has a voice that stands for its voice `name`."""
        wanted = f"{provider}/{name}"
        names = [member.name for member in self.lineup.members]
        return provider.lower() in names or any(self._names.own(member, wanted) for member in names)

    async def prepare(self, texts: Iterable[str], settings: protocol.VoiceSettings) -> None:
        """Speak `texts` into the cache. Raises `ProviderError`."""
        for text in texts:
            async for _ in self.speak(text, settings):
                pass

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()

    def _order(self) -> Sequence[Member[CachedVoice]]:
        """Return the members to ask; the only one that nobody can replace is asked twice."""
        members = self.lineup.members
        return members * 2 if len(members) == 1 and not members[0].embedded else members

    async def _attempt(
        self, member: Member[CachedVoice], text: str, settings: protocol.VoiceSettings, progress: _Progress
    ) -> AsyncGenerator[protocol.SpeechChunk, None]:
        """Speak with one member; `progress.failure` says why it did not come to an end."""
        progress.begin_attempt()
        try:
            async with aclosing(self._timed_chunks(member, text, settings)) as chunks:
                async for chunk in chunks:
                    yield progress.shifted(chunk)
                    progress.add(chunk)
        except TimeoutError:
            self._note_failure(member, ProviderTimeout(f"the voice '{member.name}' was too slow"), progress)
            return
        except ProviderError as error:
            self._note_failure(member, error, progress)
            return
        if progress.seconds:
            pace = len(text) / progress.seconds
            self._paces[member.name] = (self._pace(member) + pace) / 2

    async def _timed_chunks(
        self, member: Member[CachedVoice], text: str, settings: protocol.VoiceSettings
    ) -> AsyncGenerator[protocol.SpeechChunk, None]:
        """Yield what a member makes. Raises `ProviderError`, and `TimeoutError` where it is too slow."""
        has_spare = member is not self.lineup.members[-1]
        first = FIRST_AUDIO_SECONDS_WITH_SPARE if has_spare else FIRST_AUDIO_SECONDS
        patience = _Patience(self.lineup.is_patient(member), first)
        remembered = member.provider.holds(text, settings)
        async with aclosing(member.provider.speak(text, settings)) as chunks:
            while chunk := await patience.next_chunk(chunks):
                # Audio out of the memory says nothing about the provider.
                if chunk.pcm and not patience.produced and not remembered:
                    member.breaker.succeed()
                patience.produced += len(chunk.pcm) / 2 / SAMPLE_RATE
                yield chunk

    def _pace(self, member: Member[CachedVoice]) -> float:
        """Return how many characters the member speaks in a second."""
        return self._paces.get(member.name, CHARACTERS_PER_SECOND)

    def _note_failure(self, member: Member[CachedVoice], error: ProviderError, progress: _Progress) -> None:
        progress.failure = error
        # One that speaks too slowly would stutter through the next sentence as well: its breaker opens at once.
        slow = isinstance(error, ProviderTimeout) and progress.seconds > 0
        self.lineup.fail(member, error, _now(), trip=slow)
        _log_failure("voice", member.name, error, spoken=round(progress.seconds, 2))


@dataclass(slots=True)
class _Patience:
    """How long a voice may still take, by what it has made so far."""

    endless: bool
    first: float
    """Seconds for the first audio."""
    produced: float = 0.0
    """Seconds of audio made so far."""
    waited: float = 0.0
    """Seconds waited for it since the first audio."""

    async def next_chunk(self, chunks: AsyncGenerator[protocol.SpeechChunk, None]) -> protocol.SpeechChunk | None:
        """Return the next chunk, None at the end. Raises `TimeoutError`."""
        allowed = self.produced + MAX_SECONDS_BEHIND if self.produced else self.first
        begun = _now()
        async with asyncio.timeout(None if self.endless else max(allowed - self.waited, 0.0)):
            chunk = await anext(chunks, None)
        # The wait for the first audio is no stutter: the count starts anew with it.
        self.waited = self.waited + _now() - begun if self.produced or not (chunk and chunk.pcm) else 0.0
        return chunk


@dataclass(slots=True)
class _Progress:
    """How much of an utterance has been spoken, over all voices that were tried."""

    text: str
    seconds: float = 0.0
    """Audio of the present voice."""
    failure: ProviderError | None = None
    """Why the last voice that was tried has not spoken the rest; None while it speaks, and once it has."""
    _before: float = 0.0
    """Audio of the voices before it."""
    _words: list[protocol.WordTime] = field(default_factory=list)
    """Of the present voice, its times from its own start."""
    _rest: list[str] | None = None
    """Words left for the present voice; None: the whole text, markup and all."""

    def text_for(self, voice: CachedVoice) -> str:
        """Return what the voice is to speak: with its markup only where it reads it and nothing was spoken yet."""
        if self._rest is not None:
            return " ".join(self._rest)
        return self.text if voice.speaks_ssml else plain(self.text)

    def begin_attempt(self) -> None:
        self._before += self.seconds
        self.seconds = 0.0
        self.failure = None
        self._words.clear()

    def add(self, chunk: protocol.SpeechChunk) -> None:
        self.seconds += len(chunk.pcm) / 2 / SAMPLE_RATE
        self._words += chunk.words

    def shifted(self, chunk: protocol.SpeechChunk) -> protocol.SpeechChunk:
        """Return the chunk with its words' times from the start of the whole utterance."""
        return chunk.later(self._before)

    def skip_spoken(self, pace: float) -> bool:
        """Leave out the words that the present voice has spoken; return whether there is anything left."""
        words = self._rest if self._rest is not None else plain(self.text).split()
        self._rest = words[self._count_spoken(words, pace) :] if self.seconds else words
        return bool(self._rest)

    def _count_spoken(self, words: Sequence[str], pace: float) -> int:
        """Count the words that were spoken: by their times where the voice gives them, else by its pace."""
        # Times count only where they are of exactly these words: some voices split or rewrite them.
        if self._words and [word.word for word in self._words] == list(words[: len(self._words)]):
            return sum(word.end <= self.seconds + 0.02 for word in self._words)
        characters = self.seconds * pace
        count = 0
        for word in words:
            # A word of which less than half was heard is spoken again.
            if characters < (len(word) + 1) / 2:
                break
            characters -= len(word) + 1
            count += 1
        return count


def _now() -> float:
    return asyncio.get_running_loop().time()
