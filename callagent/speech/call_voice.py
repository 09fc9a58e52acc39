"""One call's views of the shared voice: one times its first audio, one plays a recording where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError
from callagent.speech.protocol import SpeechChunk, Voice, VoiceSettings, WordTime


class TimedVoice:
    """`on_first` gets the text, when the voice was asked for it, and when its first audio was there."""

    def __init__(self, voice: Voice, on_first: Callable[[str, float, float], None]) -> None:
        self._voice = voice
        self._on_first = on_first

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        clock = asyncio.get_running_loop().time
        asked, begun = clock(), False
        speaking = self._voice.speak(text, settings)
        try:
            async for chunk in speaking:
                if chunk.pcm and not begun:
                    begun = True
                    self._on_first(text, asked, clock())
                yield chunk
        finally:
            await speaking.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """The voice is shared; whoever opened it closes it."""


RECORDING = Path(__file__).parent / "data" / "apology.ulaw"
"""G.711 μ-law, 8 kHz: what `APOLOGY_TEXT` sounds like."""
APOLOGY_TEXT = "I'm sorry, I am having trouble speaking right now. Please hold, or call again in a few minutes."


class ApologisingVoice:
    """One call's voice: the first utterance that cannot be spoken at all is replaced by the recording."""

    def __init__(self, voice: Voice, on_outage: Callable[[], None] = lambda: None) -> None:
        """`on_outage` is told of every utterance that could not be spoken to its end."""
        self._voice = voice
        self._on_outage = on_outage
        self.apologised = False

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        """As `Voice`; the failure is raised when the recording was handed over."""
        spoken = False
        speaking = self._voice.speak(text, settings)
        try:
            async for chunk in speaking:
                spoken = spoken or bool(chunk.pcm)
                yield chunk
        except ProviderError:
            if not spoken and not self.apologised:
                self.apologised = True
                yield _apology(text)
            self._on_outage()
            raise
        finally:
            await speaking.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """The voice is shared; whoever opened it closes it."""


def _apology(text: str) -> SpeechChunk:
    """The recording; the time of the first word is after its end: nothing of `text` was heard."""
    pcm = _recording()
    end = len(pcm) / 2 / SAMPLE_RATE
    return SpeechChunk(pcm, tuple(WordTime(word, 2 * end, 2 * end) for word in text.split()[:1]))


@cache
def _recording() -> bytes:
    import audioop

    return audioop.ulaw2lin(RECORDING.read_bytes(), 2)
