"""The embedded voice: hibari's `heart`, American English, sentence by sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech.local import weights, wire
from callagent.speech.local.engine import Engine, Job, Urgency
from callagent.speech.protocol import SpeechChunk, VoiceSettings, WordTime
from callagent.speech.sentences import sentences

SENTENCE_SECONDS = 10.0
"""How long one sentence is waited for."""


class LocalVoice:
    """hibari in a process of its own, for all calls. Word times are estimated from the sounds of each word."""

    def __init__(self) -> None:
        self.engine = Engine("callagent.speech.local.voice_process", wire.LoadVoice())

    async def start(self) -> None:
        """Returns when the voice is loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_voice()
        await self.engine.start()

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        if settings.language.partition("-")[0].lower() != "en":
            raise ProviderRefused(f"the voice 'local' speaks English, not '{settings.language}'")
        waiting = sentences(text)
        # One sentence ahead of what is heard: a caller who interrupts costs no more than that.
        first = waiting[:1]
        made = [self._ask(sentence, settings, Urgency.NOW) for sentence in first]
        start = 0.0
        try:
            for sentence in [*waiting[1:], ""]:
                if sentence:
                    made.append(self._ask(sentence, settings, Urgency.SOON))
                if not made:
                    return
                spoken = _spoken(await made[0][1])
                del made[0]
                if spoken.pcm:
                    yield _chunk(spoken, start)
                start += len(spoken.pcm) / 2 / SAMPLE_RATE
        finally:
            for job, _ in made:
                self.engine.cancel(job)

    async def close(self) -> None:
        await self.engine.close()

    def _ask(
        self, sentence: str, settings: VoiceSettings, urgency: Urgency
    ) -> tuple[Job, asyncio.Future[wire.Answer | None]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[wire.Answer | None] = loop.create_future()

        def answered(spoken: wire.Answer | None) -> None:
            if not answer.done():
                answer.set_result(spoken)

        job = Job(
            urgency,
            lambda number: wire.Speak(number, sentence, settings.name, settings.speed),
            answered,
            loop.time() + SENTENCE_SECONDS,
        )
        self.engine.submit(job)
        return job, answer


def _spoken(answer: wire.Answer | None) -> wire.Spoken:
    match answer:
        case wire.Spoken():
            return answer
        case wire.Failed(reason=reason):
            raise ProviderError(f"the voice 'local' failed: {reason}")
        case _:
            raise ProviderTimeout("the voice 'local' did not answer")


def _chunk(spoken: wire.Spoken, start: float) -> SpeechChunk:
    return SpeechChunk(spoken.pcm, tuple(WordTime(word, start + a, start + b) for word, a, b in spoken.words))
