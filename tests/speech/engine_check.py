"""Is the speech of this machine ready: the voice says a sentence, the recogniser writes it down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from callagent.audio import FRAME_BYTES
from callagent.errors import ProviderTimeout
from callagent.speech.protocol import Recognizer, RecognizerSettings, Transcript, Voice, VoiceSettings

SENTENCE = "Thank you for calling. I would like to book a table for two."
FINAL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SpeechCheck:
    said: str
    heard: str
    first_audio: float
    """Seconds from the text to the voice's first chunk."""
    audio: float
    """Seconds of speech made."""
    final: float
    """Seconds from the end of the utterance, fed as fast as it goes, to its final transcript."""


async def check_speech(recognizer: Recognizer, voice: Voice, text: str = SENTENCE) -> SpeechCheck:
    """One sentence through the voice and back through the recogniser. Raises `ProviderError`."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    first_audio = 0.0
    pcm = b""
    async for chunk in voice.speak(text, VoiceSettings()):
        first_audio = first_audio or clock() - begun
        pcm += chunk.pcm
    finished = clock()
    heard = await _recognize(recognizer, pcm)
    return SpeechCheck(text, heard, first_audio, len(pcm) / FRAME_BYTES * 0.02, clock() - finished)


async def _recognize(recognizer: Recognizer, pcm: bytes) -> str:
    final: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def transcribed(transcript: Transcript) -> None:
        if transcript.final and not final.done():
            final.set_result(transcript.text)

    stream = await recognizer.open(transcribed)
    try:
        stream.begin(RecognizerSettings())
        for frame in _frames(pcm):
            stream.feed(frame)
        stream.finish()
        async with asyncio.timeout(FINAL_SECONDS):
            return await final
    except TimeoutError:
        raise ProviderTimeout("the recogniser did not answer") from None
    finally:
        stream.close()


def _frames(pcm: bytes) -> Iterator[bytes]:
    return (pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm), FRAME_BYTES))
