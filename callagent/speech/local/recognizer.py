"""The embedded recogniser: Whisper in a process of its own, for all calls; also for whole recordings.

Partial transcripts come from Whisper tiny.en, final ones from Whisper base. `Utterance` decides, without I/O, when a
transcription is worth while; `LocalStream` requests it; `load_models` runs in the process, which is started as
`python -m callagent.speech.local.recognizer FD`.
"""

from __future__ import annotations

import asyncio
import audioop
import wave
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.audio import SAMPLE_RATE
from callagent.speech.local import inference, weights
from callagent.speech.local.inference import Engine, Job, Urgency
from callagent.speech.protocol import PREROLL_BYTES, RecognizerSettings, Transcript, primary_language

if TYPE_CHECKING:
    from callagent.speech.local.whisper import Whisper

BYTES_PER_SECOND = 2 * SAMPLE_RATE
PARTIAL_EVERY_SECONDS = 0.3
"""New speech between one partial transcript and the next."""
DRAFT_SECONDS = 0.2
"""Silence after which a draft of the final transcript is begun, in case nothing more is said."""
SILENCE_RATIO = 0.05
"""Highest level of silence, as a fraction of the loudest frame's level (-26 dB)."""
SILENCE_RMS = 40
"""Level up to which audio is always silence (-58 dBFS)."""
MAX_PIECE_SECONDS = 26.0
"""Length of an utterance from which its beginning is transcribed as a piece of its own: the model takes 30 s."""
CUT_WITHIN_SECONDS = 8.0
"""The end of a piece, in which the quietest moment is looked for to cut there."""
CUT_STEP_BYTES = BYTES_PER_SECOND // 10


class NextTranscription(Enum):
    """The transcription to begin next for an utterance that goes on."""

    NOTHING = "nothing"
    PARTIAL = "partial"
    DRAFT = "draft"
    PIECE = "piece"


class Utterance:
    """The audio of one utterance. It does no I/O and has no clock: time is counted in bytes of audio."""

    def __init__(self, preroll: bytes) -> None:
        self.audio = bytearray()
        """The audio after the last piece that was cut off."""
        self.draft_is_stale = False
        """Whether sound has come since the draft was begun, so that it lacks words."""
        self._has_draft = False
        """Whether a draft was begun in the present silence."""
        self._loudest = 0
        """Root mean square of the loudest frame."""
        self._new_bytes = 0
        """Speech since a transcription was last begun."""
        self._silent_bytes = 0
        """Silence since the last sound."""
        if preroll:
            # The pre-roll alone is no reason for a partial transcript.
            self.feed(preroll)
            self._new_bytes = 0

    def feed(self, pcm: bytes) -> NextTranscription:
        """Add audio; return the transcription that is to begin now."""
        self.audio += pcm
        if self._is_silence(pcm):
            self._silent_bytes += len(pcm)
        else:
            self._silent_bytes = 0
            self._new_bytes += len(pcm)
            self._has_draft = False
            self.draft_is_stale = True
        return self._next()

    def begin_partial(self) -> None:
        """Note that a partial transcript was begun."""
        self._new_bytes = 0

    def begin_draft(self) -> None:
        """Note that a draft of the final transcript was begun."""
        self._new_bytes = 0
        self._has_draft = True
        self.draft_is_stale = False

    def cut_piece(self) -> bytes:
        """Remove the audio up to the quietest moment of the last seconds, and return it."""
        at = quietest_offset(self.audio, CUT_WITHIN_SECONDS)
        piece = bytes(self.audio[:at])
        del self.audio[:at]
        self._new_bytes = 0
        return piece

    def _next(self) -> NextTranscription:
        if len(self.audio) >= MAX_PIECE_SECONDS * BYTES_PER_SECOND:
            return NextTranscription.PIECE
        if not self._has_draft and self._loudest and self._silent_bytes >= DRAFT_SECONDS * BYTES_PER_SECOND:
            return NextTranscription.DRAFT
        if self._new_bytes >= PARTIAL_EVERY_SECONDS * BYTES_PER_SECOND:
            return NextTranscription.PARTIAL
        return NextTranscription.NOTHING

    def _is_silence(self, pcm: bytes) -> bool:
        level = audioop.rms(pcm, 2)
        # Silence is relative to the utterance's own level, because lines differ more than a pause does from a word.
        if level > SILENCE_RMS:
            self._loudest = max(self._loudest, level)
        return level <= max(SILENCE_RMS, SILENCE_RATIO * self._loudest)


def quietest_offset(audio: bytes | bytearray, within: float) -> int:
    """Return the byte offset of the middle of the quietest tenth of a second in the last `within` seconds."""
    first = max(CUT_STEP_BYTES, len(audio) - round(within * BYTES_PER_SECOND))
    first -= first % 2
    offsets = range(first, len(audio) - CUT_STEP_BYTES + 1, CUT_STEP_BYTES)
    found = min(offsets, key=lambda at: audioop.rms(audio[at : at + CUT_STEP_BYTES], 2), default=len(audio))
    return min(found + CUT_STEP_BYTES // 2, len(audio))


def split_recording(pcm: bytes) -> list[bytes]:
    """Cut a recording of any length into pieces that are short enough for a model."""
    rest = bytearray(pcm)
    pieces: list[bytes] = []
    while len(rest) > MAX_PIECE_SECONDS * BYTES_PER_SECOND:
        window = rest[: round(MAX_PIECE_SECONDS * BYTES_PER_SECOND)]
        at = quietest_offset(window, CUT_WITHIN_SECONDS)
        pieces.append(bytes(rest[:at]))
        del rest[:at]
    return [*pieces, bytes(rest)]


FINAL_DEADLINE_SECONDS = 8.0
"""Time for a final transcript or its draft."""
PARTIAL_DEADLINE_SECONDS = 1.0
"""Time for a partial transcript; a later one is of no use."""


@dataclass(frozen=True, slots=True)
class RecognizerOptions:
    """How the process is started."""

    whisper_dir: str = ""
    """A CTranslate2 Whisper model directory for final transcripts; empty: the packaged Whisper base."""
    threads: int = 1
    """Transcriptions at a time; each occupies a processor."""
    beam: int = 5
    """Hypotheses that are followed for a final transcript; more are better and slower."""
    cache: Path | None = None
    """Where the packaged model is put together; None: `~/.cache/callagent`."""


class LocalRecognizer:
    """Whisper in a process of its own, for all calls."""

    def __init__(self, options: RecognizerOptions | None = None) -> None:
        options = options or RecognizerOptions()
        load = inference.LoadRecognizer(
            options.whisper_dir, str(options.cache or weights.default_cache()), options.threads, options.beam
        )
        self._packaged_base = not options.whisper_dir
        self.engine = Engine(
            "callagent.speech.local.recognizer", load, at_once=options.threads, partials=4 * options.threads
        )

    async def start(self) -> None:
        """Return when the models are loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_recognizer(packaged_base=self._packaged_base)
        await self.engine.start()

    async def open(self, on_transcript: Callable[[Transcript], None]) -> LocalStream:
        return LocalStream(self.engine, on_transcript)

    async def close(self) -> None:
        await self.engine.close()


class LocalStream:
    """One call's stream; several utterances may wait for their final transcripts."""

    def __init__(self, engine: Engine, on_transcript: Callable[[Transcript], None]) -> None:
        self._engine = engine
        self._on_transcript = on_transcript
        self._preroll = bytearray()
        self._utterance_count = 0
        self._current: _Transcription | None = None
        """That of the utterance between `begin()` and `finish()`."""
        self._finishing: set[_Transcription] = set()
        """Those of finished utterances, whose final transcripts are owed."""

    def feed(self, pcm: bytes) -> None:
        if self._current is not None:
            self._current.feed(pcm)
        self._preroll += pcm
        if len(self._preroll) > 2 * PREROLL_BYTES:
            del self._preroll[:-PREROLL_BYTES]

    def begin(self, settings: RecognizerSettings) -> None:
        if self._current is not None:
            self._current.close()
        self._utterance_count += 1
        preroll = bytes(self._preroll[-PREROLL_BYTES:])
        self._current = _Transcription(self._engine, self._utterance_count, settings, preroll, self._emit)

    def finish(self) -> None:
        if self._current is None:
            return
        transcription, self._current = self._current, None
        self._finishing.add(transcription)
        # Audio of this utterance must not become the pre-roll of the next one.
        self._preroll.clear()
        transcription.finish()

    def close(self) -> None:
        for transcription in self._finishing | ({self._current} if self._current else set()):
            transcription.close()
        self._finishing.clear()
        self._current = None

    def _emit(self, transcription: _Transcription, transcript: Transcript) -> None:
        if transcript.final:
            self._finishing.discard(transcription)
        self._on_transcript(transcript)


class _Transcription:
    """The work on one utterance, from `begin()` to its final transcript.

    In each pause that might be the end, a draft of the final transcript is begun. If nothing more is said, the draft is
    ready, or nearly so, when the turn manager decides that the utterance is over.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        settings: RecognizerSettings,
        preroll: bytes,
        emit: Callable[[_Transcription, Transcript], None],
    ) -> None:
        self._engine = engine
        self._number = number
        self._settings = settings
        self._emit = emit
        self._utterance = Utterance(preroll)
        self._pieces: list[str | None] = []
        """Texts of the pieces that were cut off a long utterance; None while a piece is being transcribed."""
        self._partial: Job | None = None
        self._draft: Job | None = None
        self._ready_draft: inference.Transcribed | None = None
        self._latest = ""
        """The latest partial text of the audio after the pieces."""
        self._rest: inference.Transcribed | None = None
        """The final text of the audio after the pieces."""
        self._finished = False
        self._closed = False

    def feed(self, pcm: bytes) -> None:
        match self._utterance.feed(pcm):
            case NextTranscription.PARTIAL if self._partial is None:
                self._request_partial()
            case NextTranscription.DRAFT:
                self._request_draft()
            case NextTranscription.PIECE:
                self._request_piece()
            case _:
                pass

    def finish(self) -> None:
        self._finished = True
        self._drop_partial()
        # The draft, ready or not, becomes the final transcript unless sound has come after it was begun.
        if self._utterance.draft_is_stale or (self._draft is None and self._ready_draft is None):
            self._drop_draft()
            self._request(Urgency.NOW, bytes(self._utterance.audio), self._take_rest)
        elif self._draft is not None:
            self._engine.hasten(self._draft, Urgency.NOW)
        else:
            # Not from inside finish(): the caller of finish() is not ready for the answer.
            asyncio.get_running_loop().call_soon(self._take_rest, self._ready_draft)

    def close(self) -> None:
        self._closed = True
        self._drop_partial()
        self._drop_draft()

    def _request_partial(self) -> None:
        utterance = self._utterance
        utterance.begin_partial()
        # The first words of an utterance precede other partial transcripts, because a barge-in waits for them.
        # The audio is read when the job is sent, so that it is the latest.
        urgency = Urgency.PARTIAL if self._latest or self._pieces else Urgency.FIRST_WORDS
        job = self._job(urgency, lambda: bytes(utterance.audio), self._take_partial)
        if self._engine.submit(job):
            self._partial = job

    def _request_draft(self) -> None:
        self._drop_partial()
        self._drop_draft()
        self._utterance.begin_draft()
        self._draft = self._request(Urgency.SOON, bytes(self._utterance.audio), self._take_draft)

    def _request_piece(self) -> None:
        """Cut off a piece, because the model takes no longer audio; its text begins the transcript."""
        self._drop_partial()
        self._drop_draft()
        self._utterance.draft_is_stale = True
        self._latest = ""
        position = len(self._pieces)
        self._pieces.append(None)

        def take_piece(answer: inference.Answer | None) -> None:
            self._pieces[position] = _text(answer)
            self._finish_if_complete()

        self._request(Urgency.SOON, self._utterance.cut_piece(), take_piece)

    def _request(self, urgency: Urgency, pcm: bytes, on_answer: Callable[[inference.Answer | None], None]) -> Job:
        job = self._job(urgency, lambda: pcm, on_answer)
        self._engine.submit(job)
        return job

    def _job(
        self, urgency: Urgency, audio: Callable[[], bytes], on_answer: Callable[[inference.Answer | None], None]
    ) -> Job:
        settings = self._settings
        # Audio that may become part of the final transcript goes to the larger model.
        final = urgency < Urgency.FIRST_WORDS
        language = primary_language(settings.language)
        expected = settings.expected or ", ".join(settings.keywords)
        seconds = FINAL_DEADLINE_SECONDS if final else PARTIAL_DEADLINE_SECONDS
        return Job(
            urgency,
            lambda number: inference.Transcribe(number, audio(), final, language, expected),
            on_answer,
            asyncio.get_running_loop().time() + seconds,
        )

    def _take_partial(self, answer: inference.Answer | None) -> None:
        self._partial = None
        self._emit_partial(_text(answer))

    def _take_draft(self, answer: inference.Answer | None) -> None:
        self._draft = None
        if self._finished:
            self._take_rest(answer)
        elif isinstance(answer, inference.Transcribed):
            self._ready_draft = answer
            self._emit_partial(_text(answer))
        else:
            self._utterance.draft_is_stale = True

    def _emit_partial(self, text: str) -> None:
        if not text or text == self._latest or self._finished or self._closed:
            return
        self._latest = text
        self._emit(self, Transcript(self._whole_text(text), False, self._number))

    def _take_rest(self, answer: inference.Answer | None) -> None:
        if isinstance(answer, inference.Transcribed):
            self._rest = answer
        else:
            # The recogniser failed on the final transcript, so the latest partial one replaces it.
            self._rest = inference.Transcribed(0, (self._latest,) if self._latest else ())
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._closed or self._rest is None or None in self._pieces:
            return
        self._closed = True
        texts = self._rest.texts
        # Alternatives belong to the last piece: for an utterance in several pieces they would lack its beginning.
        alternatives = () if self._pieces else texts[1:]
        text = self._whole_text(texts[0] if texts else "")
        confidence = self._rest.confidence if text else None
        self._emit(self, Transcript(text, True, self._number, alternatives, confidence))

    def _whole_text(self, text: str) -> str:
        return " ".join(filter(None, [*self._pieces, text]))

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._engine.cancel(self._partial)
            self._partial = None

    def _drop_draft(self) -> None:
        self._ready_draft = None
        if self._draft is not None:
            self._engine.cancel(self._draft)
            self._draft = None


def _text(answer: inference.Answer | None) -> str:
    """Return the likeliest text of an answer; empty where there is none."""
    return answer.texts[0] if isinstance(answer, inference.Transcribed) and answer.texts else ""


# What follows runs in the process of the recogniser.

PARTIAL_WINDOWS = (8.0, 12.0, 20.0, 30.0)
"""Seconds of the model's input for a partial transcript, of which the shortest possible is used; the larger model needs
at least 12."""


def load_models(settings: inference.LoadRecognizer) -> inference.Serve:
    """Load both models, or only the larger one if the small one is not installed; return the answering function."""
    from callagent.speech.local.whisper import Decoding, Whisper

    cache = Path(settings.cache)
    finals = Whisper(weights.final_model(settings.whisper_dir, cache), settings.threads)
    small = weights.partial_model(cache)
    partials = Whisper(small, settings.threads) if small else finals
    best = Decoding(beam=settings.beam)
    quick = Decoding(beam=1, windows=PARTIAL_WINDOWS if small else PARTIAL_WINDOWS[1:], alternatives=1)

    def serve(request: inference.Request) -> inference.Answer:
        if not isinstance(request, inference.Transcribe):
            raise ValueError(f"a recogniser cannot answer {type(request).__name__}")
        if request.final:
            found = finals.transcribe(request.pcm, best, request.language, request.expected)
        else:
            # An expected answer makes the small model worse, not better.
            found = partials.transcribe(request.pcm, quick, request.language)
        return inference.Transcribed(request.number, found.texts, found.confidence)

    # The first decoding allocates the memory that later ones reuse.
    for final in (True, False):
        serve(inference.Transcribe(0, bytes(2 * SAMPLE_RATE), final))
    return serve


# What follows transcribes whole recordings in this process, for tests and tools: never on a server's media loop.


def transcribe(pcm: bytes, expected: str = "") -> str:
    """Return the words in 16-bit mono PCM at 8 kHz, of any length. Blocks; raises `MissingExtra` and `UserError`."""
    from callagent.speech.local.whisper import Decoding

    found = [_whisper().transcribe(piece, Decoding(), expected=expected) for piece in split_recording(pcm)]
    return " ".join(text for part in found for text in part.texts[:1])


def transcribe_wav(path: Path | str, expected: str = "", channel: int | None = None) -> str:
    """Return the words in a 16-bit WAV file of any rate; of one channel of a stereo file, or of both mixed."""
    with wave.open(str(path), "rb") as recording:
        pcm = recording.readframes(recording.getnframes())
        channels, rate = recording.getnchannels(), recording.getframerate()
        if recording.getsampwidth() != 2 or channels > 2:
            raise ValueError(f"{path} is not 16-bit PCM with one or two channels")
    if channels == 2:
        left = {None: 0.5, 0: 1.0, 1: 0.0}[channel]
        pcm = audioop.tomono(pcm, 2, left, 1.0 - left)
    if rate != SAMPLE_RATE:
        pcm = _resample(pcm, rate)
    return transcribe(pcm, expected)


def _resample(pcm: bytes, rate: int) -> bytes:
    import numpy as np
    import soxr

    return bytes(soxr.resample(np.frombuffer(pcm, dtype="<i2"), rate, SAMPLE_RATE).astype("<i2").tobytes())


@cache
def _whisper() -> Whisper:
    weights.require_recognizer(packaged_base=True)
    from callagent.speech.local.whisper import Whisper

    return Whisper(weights.final_model("", weights.default_cache()))


if __name__ == "__main__":
    inference.run(inference.LoadRecognizer, load_models, lambda settings: settings.threads)
