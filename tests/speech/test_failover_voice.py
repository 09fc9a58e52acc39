"""Where one voice fails the next goes on: nothing is said twice, nothing left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.failover import BreakerState, Member
from callagent.speech import CachedVoice, SpeechChunk, VoiceSettings, WordTime
from callagent.speech.failover import FailoverVoice, VoiceNames
from callagent.speech.scripted import ScriptedVoice
from callagent.testing.virtual_time import run

TEXT = "one two three four five six"
WORD_BYTES = 16000 * 2 // 5
"""0.4 s for every word."""


@dataclass
class Voice:
    """Speaks a chunk for each word and does what it is told to."""

    mark: bytes = b"\1"
    fails_after: int | None = None
    """Words."""
    error: ProviderError | None = None
    first: float = 0.1
    pause: float = 0.0
    times: bool = True
    speaks_ssml: bool = False
    said: list[tuple[str, VoiceSettings]] = field(default_factory=list)
    ended: int = 0

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        self.said.append((text, settings))
        try:
            for number, word in enumerate(text.split()):
                await asyncio.sleep(self.pause if number else self.first)
                if number == self.fails_after:
                    raise self.error or ProviderError("cut")
                times = (WordTime(word, number * 0.4, number * 0.4 + 0.4),) if self.times else ()
                yield SpeechChunk(self.mark * WORD_BYTES, times)
        finally:
            self.ended += 1

    async def close(self) -> None:
        return None


def lineup(*voices: Voice, names: VoiceNames | None = None, embedded: bool = False) -> FailoverVoice:
    members = [Member(name, CachedVoice(voice)) for name, voice in zip("abc", voices, strict=False)]
    if embedded:
        members[-1] = Member("local", members[-1].provider, embedded=True)
    return FailoverVoice(members, names)


async def say(voice: FailoverVoice, text: str = TEXT, settings: VoiceSettings | None = None) -> list[SpeechChunk]:
    return [chunk async for chunk in voice.speak(text, settings or VoiceSettings())]


def words_of(chunks: Sequence[SpeechChunk]) -> list[str]:
    return [word.word for chunk in chunks for word in chunk.words]


def test_the_first_voice_speaks_while_it_can() -> None:
    first, second = Voice(), Voice()
    assert words_of(run(say(lineup(first, second)))) == TEXT.split()
    assert second.said == []


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("times", [True, False])
def test_a_cut_at_any_word_loses_none_and_repeats_none(after: int, times: bool) -> None:
    first, second = Voice(fails_after=after, times=times), Voice(mark=b"\2")
    # Without times the pace decides: one word of 0.4 s has about as many characters as here.
    text = TEXT if times else "abcde abcde abcde abcde abcde abcde"
    chunks = run(say(lineup(first, second), text))
    assert len(chunks) == 6
    assert [chunk.pcm[0] for chunk in chunks] == [1] * min(after, 6) + [2] * (6 - min(after, 6))
    left = text.split()[after:]
    assert [said for said, _ in second.said] == ([" ".join(left)] if left else [])
    if times:
        assert words_of(chunks) == text.split()
        assert [word.start for chunk in chunks for word in chunk.words] == pytest.approx([0.4 * n for n in range(6)])


def test_a_voice_that_does_not_begin_within_1_25_s_is_passed_over() -> None:
    first, second = Voice(first=60), Voice()

    async def timed() -> float:
        begun = asyncio.get_running_loop().time()
        speaking = lineup(first, second).speak(TEXT, VoiceSettings())
        await anext(speaking)
        return asyncio.get_running_loop().time() - begun

    assert run(timed()) == pytest.approx(1.35)
    assert first.ended == 1


def test_a_voice_that_drips_is_replaced_within_the_utterance_and_not_asked_for_the_next() -> None:
    first, second = Voice(pause=1.0), Voice(mark=b"\2")
    voice = lineup(first, second)

    async def two() -> tuple[list[SpeechChunk], list[SpeechChunk]]:
        return await say(voice), await say(voice, "seven eight")

    chunks, following = run(two())
    assert words_of(chunks) == TEXT.split()
    assert {chunk.pcm[0] for chunk in chunks} == {1, 2}
    assert {chunk.pcm[0] for chunk in following} == {2}


def test_a_voice_just_slower_than_speech_is_left_alone() -> None:
    first, second = Voice(pause=0.45), Voice()
    run(say(lineup(first, second)))
    assert second.said == []


def test_after_three_failures_a_voice_is_not_asked_until_its_probe() -> None:
    first, second = Voice(fails_after=0), Voice()
    voice = lineup(first, second)

    async def calls() -> None:
        for number in range(5):
            await say(voice, f"text {number}")
        assert len(first.said) == 3
        first.fails_after = None
        await asyncio.sleep(11)
        await say(voice, "probe")
        await say(voice, "after")

    run(calls())
    assert [text for text, _ in first.said[3:]] == ["probe", "after"]
    assert voice.lineup.members[0].breaker.state is BreakerState.CLOSED


def test_a_refused_key_is_asked_once() -> None:
    first, second = Voice(fails_after=0, error=ProviderRefused("bad key", 401)), Voice()
    voice = lineup(first, second)

    async def calls() -> None:
        for number in range(3):
            await say(voice, f"text {number}")

    run(calls())
    assert len(first.said) == 1


def test_what_is_in_the_cache_needs_no_voice() -> None:
    first, second = Voice(), Voice(mark=b"\2")
    voice = lineup(first, second)

    async def calls() -> list[SpeechChunk]:
        await voice.prepare([TEXT], VoiceSettings())
        first.fails_after = 0
        for number in range(4):
            await say(voice, f"text {number}")
        return await say(voice)

    assert {chunk.pcm[0] for chunk in run(calls())} == {1}


def test_an_utterance_of_two_voices_is_not_kept() -> None:
    first, second = Voice(fails_after=2), Voice(mark=b"\2")
    voice = lineup(first, second)
    run(say(voice))
    first.fails_after = None
    assert {chunk.pcm[0] for chunk in run(say(voice))} == {1}


def test_when_all_fail_the_last_reason_is_raised_and_counted() -> None:
    voice = lineup(Voice(fails_after=0), Voice(fails_after=0, error=ProviderTimeout("late")))
    with pytest.raises(ProviderTimeout, match="late"):
        run(say(voice))
    assert voice.lineup.outages == 1


def test_when_nobody_may_be_asked_that_is_said() -> None:
    voice = lineup(Voice(fails_after=0))

    async def calls() -> None:
        for _ in range(2):
            with pytest.raises(ProviderError, match="cut"):
                await say(voice)
        with pytest.raises(ProviderError, match="no voice may be asked"):
            await say(voice)

    run(calls())


def test_an_embedded_voice_is_waited_for_when_nobody_is_left() -> None:
    assert words_of(run(say(lineup(Voice(fails_after=0), Voice(first=20), embedded=True)))) == TEXT.split()


def test_closing_the_iterator_stops_the_voice() -> None:
    voice = Voice(pause=0.1)

    async def interrupted() -> None:
        speaking = lineup(voice).speak(TEXT, VoiceSettings())
        await anext(speaking)
        await speaking.aclose()  # type: ignore[attr-defined]

    run(interrupted())
    assert voice.ended == 1


def test_each_voice_is_asked_for_its_own_name() -> None:
    names = VoiceNames({("elevenlabs", "xyz"): (("b", "like-xyz"), ("c", "other"))})
    first, second, third = Voice(fails_after=0), Voice(fails_after=0), Voice()
    voice = lineup(first, second, third, names=names)
    run(say(voice, settings=VoiceSettings(name="elevenlabs/xyz")))
    assert [one.said[0][1].name for one in (first, second, third)] == ["", "like-xyz", "other"]


def test_whether_a_voice_can_be_had() -> None:
    voice = lineup(Voice(), Voice(), names=VoiceNames({("elevenlabs", "xyz"): (("b", "like-xyz"),)}))
    assert voice.has_voice("A", "anything")
    assert voice.has_voice("ElevenLabs", "xyz")
    assert not voice.has_voice("elevenlabs", "other")


def test_names_of_a_provider_of_the_line_up_and_engine_names() -> None:
    names = VoiceNames()
    assert names.name_at("a", "A/xyz") == "xyz"
    assert names.name_at("b", "a/xyz") == ""
    assert names.name_at("b", "xyz") == "xyz"
    assert names.name_at("b", "") == ""


def test_markup_goes_to_the_voices_that_read_it() -> None:
    first, second = Voice(fails_after=1, speaks_ssml=True), Voice()
    run(say(lineup(first, second), 'one <break time="1s"/> two three'))
    assert first.said[0][0] == 'one <break time="1s"/> two three'
    assert "<" not in second.said[0][0]


def test_the_only_voice_is_asked_again_after_a_lost_connection() -> None:
    assert "".join(run(said_by_only([ProviderError("cut")]))) == TEXT
    with pytest.raises(ProviderRefused):
        run(said_by_only([ProviderRefused("no", 401)]))
    with pytest.raises(ProviderError, match="again"):
        run(said_by_only([ProviderError("cut"), ProviderError("again")]))


async def said_by_only(errors: list[ProviderError]) -> list[str]:
    class Only(ScriptedVoice):
        async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
            if errors:
                raise errors.pop(0)
            self.spoken.append(text)
            yield SpeechChunk(bytes(320))

    only = Only()
    async for _ in FailoverVoice([Member("only", CachedVoice(only))]).speak(TEXT, VoiceSettings()):
        pass
    return only.spoken
