"""Failover of speech: the next recogniser gets the whole utterance again, the next voice speaks the rest of it.

The members of a line-up stand in order of preference. The breaker of each, shared by all calls, decides whether it may
be asked (`callagent.failover`).
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
from callagent.speech.text_processing import plain_text
from callagent.speech.voice_wrappers import CachedVoice

log = get_logger(__name__)

FINAL_SECONDS = 4.0
"""Time to wait after `finish()` for a final transcript of the last recogniser. On a busy machine a late transcript is
better than the last partial one, and the caller hears a filler meanwhile."""
FINAL_SECONDS_BEFORE_LAST = 1.25
"""The same for every other recogniser: with its successor's time, the caller waits at most 1.5 s more than usual."""
MAX_AUDIO_BYTES = 60 * 2 * SAMPLE_RATE
"""Audio of one utterance that is kept for the next recogniser: its first minute."""


def _log_failure(role: str, name: str, error: ProviderError, **details: float) -> None:
    """Log a member's failure: as an error if its key was refused, so that somebody has to act, else as a warning."""
    level = log.error if is_alarm(error) else log.warning
    level("provider_failed", role=role, provider=name, error=str(error), **details)


def _may_retry(error: ProviderError) -> bool:
    """Return whether an only member is to be asked again: after a lost connection, not after a timeout or a refusal."""
    return not isinstance(error, ProviderTimeout | ProviderRefused)


@dataclass(slots=True)
class _Utterance:
    """An utterance whose final transcript is owed."""

    number: int
    settings: protocol.RecognizerSettings
    audio: bytearray
    """Its audio so far, pre-roll included, for the next recogniser."""
    finished: bool = False
    latest_text: str = ""
    """The latest transcript of any member, which becomes the final one if all fail."""
    failed_places: set[int] = field(default_factory=set)
    """Places of the members that are not asked again for it."""
    has_failed: bool = False
    """Whether a member has failed on it already; an only member is asked again once."""


class FailoverRecognizer:
    """Recognisers in order of preference."""

    final_seconds = FINAL_SECONDS

    def __init__(self, members: Sequence[Member[protocol.Recognizer]]) -> None:
        self.lineup = Lineup("recognizer", members)

    async def open(
        self, on_transcript: Callable[[protocol.Transcript], None], on_outage: Callable[[], None] = lambda: None
    ) -> FailoverStream:
        """Return a stream while its recogniser is still being opened.

        `on_outage` is called for every utterance that no member understood.
        """
        return FailoverStream(self.lineup, on_transcript, on_outage)

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()


class WatchedRecognizer:
    """One call's view of the line-up; `on_outage` is called for every utterance that no member understood."""

    def __init__(self, recognizer: FailoverRecognizer, on_outage: Callable[[], None]) -> None:
        self._recognizer = recognizer
        self._on_outage = on_outage

    async def open(self, on_transcript: Callable[[protocol.Transcript], None]) -> FailoverStream:
        return await self._recognizer.open(on_transcript, self._on_outage)

    async def close(self) -> None:
        """Do nothing: the recogniser is shared, and closed by its owner."""


class FailoverStream:
    """One call's stream over a line-up.

    Each `finish()` is answered by exactly one final transcript; if every recogniser fails, it is the last partial one.
    A member's stream is closed when it fails, and the next member gets the whole audio of every utterance whose final
    transcript is still owed. At most one member listens at any time.
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
        """Place in the line-up of the member that listens or is being opened; None: there is none."""
        self._stream: protocol.RecognizerStream | None = None
        """The open stream of that member; None while it is being opened."""
        self._opening: asyncio.Task[None] | None = None
        self._numbers: dict[int, int] = {}
        """Number of an utterance on the member's stream, which counts from 1 -> our number of it."""
        self._begun_on_stream = 0
        """Number of utterances begun on the present stream."""
        self._utterance_count = 0
        self._preroll = bytearray()
        self._current: _Utterance | None = None
        """The utterance between `begin()` and `finish()`, also the last one of `_owed`."""
        self._owed: deque[_Utterance] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: tuple[int, int | None] | None = None
        """What the deadline is for: number of an utterance, and place of the member that owes its transcript."""
        self._closed = False
        self._choose_member()

    # RecognizerStream

    def feed(self, pcm: bytes) -> None:
        if self._current is not None:
            self._current.audio += pcm[: MAX_AUDIO_BYTES - len(self._current.audio)]
        self._preroll += pcm
        # The pre-roll is cut seldom, not with every frame: this runs 50 times a second for each call.
        if len(self._preroll) > 2 * protocol.PREROLL_BYTES:
            del self._preroll[: -protocol.PREROLL_BYTES]
        if self._stream is not None:
            self._stream.feed(pcm)
            # A provider's stream reports its failure in an attribute, because nothing awaits its tasks.
            if error := getattr(self._stream, "failed", None):
                self._replace_member(error)

    def begin(self, settings: protocol.RecognizerSettings) -> None:
        self._utterance_count += 1
        self._current = _Utterance(self._utterance_count, settings, self._preroll[-protocol.PREROLL_BYTES :])
        # Only while no transcript is owed: a new member would have to transcribe those utterances once more.
        if not self._owed:
            self._return_to_better()
        self._owed.append(self._current)
        if self._stream is not None:
            self._begin_on_stream(self._current)

    def finish(self) -> None:
        if self._current is None:
            return
        self._current.finished = True
        self._current = None
        self._preroll.clear()
        if self._stream is not None:
            self._stream.finish()
        if self._place is None:
            self._give_up()
        self._arm_deadline()

    def close(self) -> None:
        self._closed = True
        self._owed.clear()
        self._current = None
        self._release_member()
        self._arm_deadline()

    # Choice of the member that listens

    def _return_to_better(self) -> None:
        """Go back to a member that is preferred to the present one, if its breaker admits it."""
        better = self._lineup.admit(self._loop.time(), before=self._place)
        if better is not None:
            self._release_member()
            self._select(better)

    def _choose_member(self) -> None:
        failed = self._owed[0].failed_places if self._owed else set()
        place = self._lineup.admit(self._loop.time(), without=failed)
        if place is None:
            self._give_up()
        else:
            self._select(place)

    def _select(self, place: int) -> None:
        self._place = place
        self._opening = self._loop.create_task(self._open_stream(place))

    async def _open_stream(self, place: int) -> None:
        """Open the member's stream and give it every utterance whose transcript is owed."""
        member = self._lineup.members[place]

        def transcribed(transcript: protocol.Transcript) -> None:
            # A stream that was closed may still call back.
            if self._place == place and self._stream is stream:
                self._receive_transcript(transcript)

        stream: protocol.RecognizerStream | None = None
        try:
            stream = await member.provider.open(transcribed)
        except ProviderError as error:
            self._replace_member(error)
            return
        if self._closed or self._place != place:
            stream.close()
            return
        self._stream = stream
        self._numbers.clear()
        self._begun_on_stream = 0
        for utterance in self._owed:
            self._begin_on_stream(utterance)
            for at in range(0, len(utterance.audio), FRAME_BYTES):
                stream.feed(bytes(utterance.audio[at : at + FRAME_BYTES]))
            if utterance.finished:
                stream.finish()
        if not self._owed:
            # The new stream has no pre-roll of its own yet.
            stream.feed(bytes(self._preroll[-protocol.PREROLL_BYTES :]))
        self._arm_deadline()

    def _release_member(self) -> None:
        # A member that fails to open calls this from its own task, which must not cancel itself.
        if self._opening is not None and self._opening is not _current_task():
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()
        self._opening = self._stream = self._place = None

    def _replace_member(self, error: ProviderError) -> None:
        """Replace the member that listens, which has failed."""
        if self._place is None or self._closed:
            return
        member = self._lineup.members[self._place]
        # `feed` runs in the context of the socket; the failure is recorded in the context of the call.
        self._context.run(self._lineup.fail, member, error, self._loop.time())
        _log_failure("recognizer", member.name, error)
        retry = len(self._lineup.members) == 1 and _may_retry(error)
        for utterance in self._owed:
            if utterance.has_failed or not retry:
                utterance.failed_places.add(self._place)
            utterance.has_failed = True
        self._release_member()
        self._choose_member()

    def _give_up(self) -> None:
        """Answer the finished utterances with their latest transcripts, because no member can be asked."""
        finished = [utterance for utterance in self._owed if utterance.finished]
        for utterance in finished:
            self._owed.remove(utterance)
            self._lineup.outages += 1
            log.error("provider_outage", role="recognizer")
            # Not from inside finish(): the caller of finish() is not ready for the answer.
            self._loop.call_soon(self._emit, protocol.Transcript(utterance.latest_text, True, utterance.number))
            if not utterance.latest_text:
                self._loop.call_soon(self._on_outage)
        self._arm_deadline()

    # Utterances

    def _begin_on_stream(self, utterance: _Utterance) -> None:
        assert self._stream is not None
        self._begun_on_stream += 1
        self._numbers[self._begun_on_stream] = utterance.number
        self._stream.begin(utterance.settings)

    def _receive_transcript(self, transcript: protocol.Transcript) -> None:
        number = self._numbers.get(transcript.utterance, 0)
        utterance = next((one for one in self._owed if one.number == number), None)
        if utterance is None or self._place is None:
            return
        utterance.latest_text = transcript.text or utterance.latest_text
        if transcript.final:
            self._owed.remove(utterance)
            self._lineup.members[self._place].breaker.succeed()
            self._arm_deadline()
        self._on_transcript(replace(transcript, utterance=number))

    def _arm_deadline(self) -> None:
        """Run the only deadline: for the oldest finished utterance and the member that listens.

        It starts anew when either of the two changes, so utterances that are finished later do not postpone it.
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
        return FINAL_SECONDS if self._place == len(self._lineup.members) - 1 else FINAL_SECONDS_BEFORE_LAST

    def _miss_deadline(self) -> None:
        self._deadline = self._awaited = None
        self._replace_member(ProviderTimeout(f"no final transcript within {self._final_seconds:g} s"))

    def _emit(self, transcript: protocol.Transcript) -> None:
        if not self._closed:
            self._on_transcript(transcript)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No event loop runs in this thread.
        return None


VoiceName = tuple[str, str]
"""A provider's name, and its own name of the voice."""


@dataclass(frozen=True, slots=True)
class VoiceNames:
    """The voices of different providers that replace one another.

    `VoiceSettings.name` asks for a voice as `provider/name`; a name without provider is the engine's own.
    """

    table: Mapping[VoiceName, tuple[VoiceName, ...]] = field(default_factory=dict)
    """The voice that is asked for -> similar voices of other providers."""

    def name_at(self, provider: str, name: str) -> str:
        """Return the provider's own name of the voice `name`, or of a similar one; empty: its default voice."""
        wanted = split_voice_name(name)
        if wanted[0] in ("", provider):
            return wanted[1]
        return next((similar for other, similar in self.table.get(wanted, ()) if other == provider), "")


def split_voice_name(name: str) -> VoiceName:
    """Return the two parts of `provider/name`; the provider is empty where there is none."""
    provider, slash, rest = name.partition("/")
    return (provider.lower(), rest) if slash else ("", name)


FIRST_AUDIO_SECONDS = 1.5
"""Time from the text to the first audio of the last voice."""
FIRST_AUDIO_SECONDS_BEFORE_LAST = 1.25
"""The same for every other voice: with its successor's time, the caller waits at most 1.5 s more than usual."""
MAX_SECONDS_BEHIND = 1.0
"""A voice whose audio falls further behind its playout is too slow."""
CHARACTERS_PER_SECOND = 15.0
"""Pace assumed for a voice that has not spoken yet."""


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
            own_settings = replace(settings, name=self._names.name_at(member.name, settings.name))
            rest = progress.text_for(member.provider)
            # An utterance in a member's cache can be spoken without asking the provider.
            if not member.provider.holds(rest, own_settings) and not self.lineup.may_ask(member, _now()):
                continue
            async with aclosing(self._attempt(member, rest, own_settings, progress)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if progress.failure is None or not progress.skip_spoken(self._pace(member)):
                return
        self.lineup.outages += 1
        log.error("provider_outage", role=self.lineup.role)
        raise progress.failure or ProviderError("no voice may be asked: all have failed lately")

    def has_voice(self, provider: str, name: str) -> bool:
        """Return whether a member is the provider, or has a voice similar to the provider's voice `name`."""
        wanted = f"{provider}/{name}"
        names = [member.name for member in self.lineup.members]
        return provider.lower() in names or any(self._names.name_at(member, wanted) for member in names)

    async def prepare(self, texts: Iterable[str], settings: protocol.VoiceSettings) -> None:
        """Synthesise `texts` into the caches. Raises `ProviderError`."""
        for text in texts:
            async for _ in self.speak(text, settings):
                pass

    async def close(self) -> None:
        for member in self.lineup.members:
            await member.provider.close()

    def _order(self) -> Sequence[Member[CachedVoice]]:
        """Return the members to ask; an only member is asked twice, unless it is embedded."""
        members = self.lineup.members
        return members * 2 if len(members) == 1 and not members[0].embedded else members

    async def _attempt(
        self, member: Member[CachedVoice], text: str, settings: protocol.VoiceSettings, progress: _Progress
    ) -> AsyncGenerator[protocol.SpeechChunk, None]:
        """Speak with one member; if it fails, `progress.failure` says why."""
        progress.begin_attempt()
        try:
            async with aclosing(self._timed_chunks(member, text, settings)) as chunks:
                async for chunk in chunks:
                    yield progress.delayed(chunk)
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
        """Yield a member's chunks. Raises `ProviderError`, and `TimeoutError` if the member is too slow."""
        is_last = member is self.lineup.members[-1]
        first_audio_seconds = FIRST_AUDIO_SECONDS if is_last else FIRST_AUDIO_SECONDS_BEFORE_LAST
        deadline = _ChunkDeadline(self.lineup.is_patient(member), first_audio_seconds)
        is_cached = member.provider.holds(text, settings)
        async with aclosing(member.provider.speak(text, settings)) as chunks:
            while chunk := await deadline.next_chunk(chunks):
                # Audio from the cache says nothing about the provider.
                if chunk.pcm and not deadline.produced_seconds and not is_cached:
                    member.breaker.succeed()
                deadline.produced_seconds += len(chunk.pcm) / 2 / SAMPLE_RATE
                yield chunk

    def _pace(self, member: Member[CachedVoice]) -> float:
        """Return how many characters the member speaks in a second, as measured so far."""
        return self._paces.get(member.name, CHARACTERS_PER_SECOND)

    def _note_failure(self, member: Member[CachedVoice], error: ProviderError, progress: _Progress) -> None:
        progress.failure = error
        # A voice that falls behind would stutter through the next sentence as well: its breaker opens at once.
        is_slow = isinstance(error, ProviderTimeout) and progress.seconds > 0
        self.lineup.fail(member, error, _now(), trip=is_slow)
        _log_failure("voice", member.name, error, spoken=round(progress.seconds, 2))


@dataclass(slots=True)
class _ChunkDeadline:
    """The time that a voice has for its next chunk: more, the more audio it has produced."""

    is_unlimited: bool
    first_audio_seconds: float
    """Time for the first audio."""
    produced_seconds: float = 0.0
    """Length of the audio so far."""
    waited_seconds: float = 0.0
    """Time spent waiting for chunks since the first audio."""

    async def next_chunk(self, chunks: AsyncGenerator[protocol.SpeechChunk, None]) -> protocol.SpeechChunk | None:
        """Return the next chunk, None at the end. Raises `TimeoutError`."""
        produced, waited = self.produced_seconds, self.waited_seconds
        allowed = produced + MAX_SECONDS_BEHIND if produced else self.first_audio_seconds
        started_at = _now()
        async with asyncio.timeout(None if self.is_unlimited else max(allowed - waited, 0.0)):
            chunk = await anext(chunks, None)
        # The wait for the first audio is no stutter, so counting starts anew with the first audio.
        self.waited_seconds = waited + _now() - started_at if produced or not (chunk and chunk.pcm) else 0.0
        return chunk


@dataclass(slots=True)
class _Progress:
    """How much of an utterance has been spoken by all voices that were asked."""

    text: str
    seconds: float = 0.0
    """Length of the present voice's audio."""
    failure: ProviderError | None = None
    """Why the present voice did not speak to the end; None while it speaks, and after it has succeeded."""
    _earlier_seconds: float = 0.0
    """Length of the earlier voices' audio."""
    _words: list[protocol.WordTime] = field(default_factory=list)
    """Words of the present voice, with times from its own start."""
    _rest: list[str] | None = None
    """Words left for the present voice; None: the whole text with its markup."""

    def text_for(self, voice: CachedVoice) -> str:
        """Return what the voice is to speak: with markup only if it reads SSML and nothing was spoken yet."""
        if self._rest is not None:
            return " ".join(self._rest)
        return self.text if voice.speaks_ssml else plain_text(self.text)

    def begin_attempt(self) -> None:
        self._earlier_seconds += self.seconds
        self.seconds = 0.0
        self.failure = None
        self._words.clear()

    def add(self, chunk: protocol.SpeechChunk) -> None:
        self.seconds += len(chunk.pcm) / 2 / SAMPLE_RATE
        self._words += chunk.words

    def delayed(self, chunk: protocol.SpeechChunk) -> protocol.SpeechChunk:
        """Return the chunk with the times of its words counted from the start of the whole utterance."""
        return chunk.delayed(self._earlier_seconds)

    def skip_spoken(self, pace: float) -> bool:
        """Remove the words that the present voice has spoken from the rest; return whether any are left."""
        words = self._rest if self._rest is not None else plain_text(self.text).split()
        self._rest = words[self._count_spoken(words, pace) :] if self.seconds else words
        return bool(self._rest)

    def _count_spoken(self, words: Sequence[str], pace: float) -> int:
        """Count the words that were spoken: by their times where the voice gives them, else by its pace."""
        # Times are used only if they are those of exactly these words: some voices split or rewrite words.
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
