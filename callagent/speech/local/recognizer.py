"""The embedded recogniser: partial transcripts from Whisper tiny.en, final ones from Whisper base."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from callagent.speech.local import weights, wire
from callagent.speech.local.engine import Engine, Job, Urgency
from callagent.speech.local.utterance import BYTES_PER_SECOND, Utterance, Wanted
from callagent.speech.protocol import RecognizerSettings, Transcript

PREROLL = BYTES_PER_SECOND // 2
"""Bytes kept from before `begin()`: voice activity is found after the first sound."""
FINAL_SECONDS = 8.0
PARTIAL_SECONDS = 1.0
"""How long an answer is waited for."""


@dataclass(frozen=True, slots=True)
class RecognizerOptions:
    whisper_dir: str = ""
    """A CTranslate2 Whisper model directory for the finals; empty: the packaged Whisper base."""
    threads: int = 1
    """Transcriptions at a time; each takes a processor."""
    beam: int = 5
    cache: Path | None = None
    """Where the packaged model is put together; None: `~/.cache/callagent`."""


class LocalRecognizer:
    """Whisper in a process of its own, for all calls."""

    def __init__(self, options: RecognizerOptions | None = None) -> None:
        options = options or RecognizerOptions()
        load = wire.LoadRecognizer(
            options.whisper_dir, str(options.cache or weights.default_cache()), options.threads, options.beam
        )
        self._packaged_base = not options.whisper_dir
        self.engine = Engine(
            "callagent.speech.local.recognizer_process", load, at_once=options.threads, partials=4 * options.threads
        )

    async def start(self) -> None:
        """Returns when the models are loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_recognizer(packaged_base=self._packaged_base)
        await self.engine.start()

    async def open(self, on_transcript: Callable[[Transcript], None]) -> LocalStream:
        return LocalStream(self.engine, on_transcript)

    async def close(self) -> None:
        await self.engine.close()


class LocalStream:
    """One call's ear."""

    def __init__(self, engine: Engine, on_transcript: Callable[[Transcript], None]) -> None:
        self._engine = engine
        self._on_transcript = on_transcript
        self._before = bytearray()
        self._count = 0
        self._hearing: _Hearing | None = None
        self._finishing: set[_Hearing] = set()

    def feed(self, pcm: bytes) -> None:
        if self._hearing is not None:
            self._hearing.feed(pcm)
        self._before += pcm
        if len(self._before) > 2 * PREROLL:
            del self._before[:-PREROLL]

    def begin(self, settings: RecognizerSettings) -> None:
        if self._hearing is not None:
            self._hearing.close()
        self._count += 1
        self._hearing = _Hearing(self._engine, self._count, settings, bytes(self._before[-PREROLL:]), self._transcribed)

    def finish(self) -> None:
        if self._hearing is None:
            return
        hearing, self._hearing = self._hearing, None
        self._finishing.add(hearing)
        # What was said once does not belong to the next utterance as well.
        self._before.clear()
        hearing.finish()

    def close(self) -> None:
        for hearing in self._finishing | ({self._hearing} if self._hearing else set()):
            hearing.close()
        self._finishing.clear()
        self._hearing = None

    def _transcribed(self, hearing: _Hearing, transcript: Transcript) -> None:
        if transcript.final:
            self._finishing.discard(hearing)
        self._on_transcript(transcript)


class _Hearing:
    """One utterance, from `begin()` to its final transcript."""

    def __init__(
        self,
        engine: Engine,
        number: int,
        settings: RecognizerSettings,
        before: bytes,
        emit: Callable[[_Hearing, Transcript], None],
    ) -> None:
        self._engine = engine
        self._number = number
        self._settings = settings
        self._emit = emit
        self._utterance = Utterance(before)
        self._pieces: list[str | None] = []
        """Texts of what was cut off a long utterance; None: still worked on."""
        self._partial: Job | None = None
        self._draft: Job | None = None
        self._drafted: wire.Transcribed | None = None
        self._latest = ""
        """The latest partial text of what was not cut off."""
        self._last: wire.Transcribed | None = None
        """The rest of the utterance, once it is finished and transcribed."""
        self._finished = False
        self._closed = False

    def feed(self, pcm: bytes) -> None:
        match self._utterance.feed(pcm):
            case Wanted.PARTIAL if self._partial is None:
                self._ask_partial()
            case Wanted.DRAFT:
                self._ask_draft()
            case Wanted.PIECE:
                self._ask_piece()
            case _:
                pass

    def finish(self) -> None:
        self._finished = True
        self._drop_partial()
        if self._utterance.spoken_on or (self._draft is None and self._drafted is None):
            self._drop_draft()
            self._ask(Urgency.NOW, bytes(self._utterance.audio), self._rest_transcribed)
        elif self._draft is not None:
            self._engine.hasten(self._draft, Urgency.NOW)
        else:
            # Not from inside finish(): the caller of finish() is not ready for the answer.
            asyncio.get_running_loop().call_soon(self._rest_transcribed, self._drafted)

    def close(self) -> None:
        self._closed = True
        self._drop_partial()
        self._drop_draft()

    def _ask_partial(self) -> None:
        utterance = self._utterance
        utterance.begin_partial()
        # The audio is taken when the job is: the latest there is.
        urgency = Urgency.PARTIAL if self._latest or self._pieces else Urgency.FIRST
        job = self._job(urgency, lambda: bytes(utterance.audio), self._partially_transcribed)
        if self._engine.submit(job):
            self._partial = job

    def _ask_draft(self) -> None:
        self._drop_partial()
        self._drop_draft()
        self._utterance.begin_draft()
        self._draft = self._ask(Urgency.SOON, bytes(self._utterance.audio), self._draft_transcribed)

    def _ask_piece(self) -> None:
        self._drop_partial()
        self._drop_draft()
        self._utterance.spoken_on = True
        self._latest = ""
        position = len(self._pieces)
        self._pieces.append(None)

        def transcribed(answer: wire.Answer | None) -> None:
            self._pieces[position] = _text(answer)
            self._finish_if_complete()

        self._ask(Urgency.SOON, self._utterance.cut(), transcribed)

    def _ask(self, urgency: Urgency, pcm: bytes, answered: Callable[[wire.Answer | None], None]) -> Job:
        job = self._job(urgency, lambda: pcm, answered)
        self._engine.submit(job)
        return job

    def _job(self, urgency: Urgency, audio: Callable[[], bytes], answered: Callable[[wire.Answer | None], None]) -> Job:
        settings = self._settings
        final = urgency < Urgency.FIRST
        language = settings.language.partition("-")[0].lower()
        expected = settings.expected or ", ".join(settings.keywords)
        seconds = FINAL_SECONDS if final else PARTIAL_SECONDS
        return Job(
            urgency,
            lambda number: wire.Transcribe(number, audio(), final, language, expected),
            answered,
            asyncio.get_running_loop().time() + seconds,
        )

    def _partially_transcribed(self, answer: wire.Answer | None) -> None:
        self._partial = None
        self._tell_partial(_text(answer))

    def _draft_transcribed(self, answer: wire.Answer | None) -> None:
        self._draft = None
        if self._finished:
            self._rest_transcribed(answer)
        elif isinstance(answer, wire.Transcribed):
            self._drafted = answer
            self._tell_partial(_text(answer))
        else:
            self._utterance.spoken_on = True

    def _tell_partial(self, text: str) -> None:
        if not text or text == self._latest or self._finished or self._closed:
            return
        self._latest = text
        self._emit(self, Transcript(self._joined(text), False, self._number))

    def _rest_transcribed(self, answer: wire.Answer | None) -> None:
        if isinstance(answer, wire.Transcribed):
            self._last = answer
        else:
            # The recogniser failed on the final: what the caller was last understood to say stands.
            self._last = wire.Transcribed(0, (self._latest,) if self._latest else ())
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._closed or self._last is None or None in self._pieces:
            return
        self._closed = True
        texts = self._last.texts
        alternatives = () if self._pieces else texts[1:]
        text = self._joined(texts[0] if texts else "")
        confidence = self._last.confidence if text else None
        self._emit(self, Transcript(text, True, self._number, alternatives, confidence))

    def _joined(self, text: str) -> str:
        return " ".join(filter(None, [*self._pieces, text]))

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._engine.cancel(self._partial)
            self._partial = None

    def _drop_draft(self) -> None:
        self._drafted = None
        if self._draft is not None:
            self._engine.cancel(self._draft)
            self._draft = None


def _text(answer: wire.Answer | None) -> str:
    return answer.texts[0] if isinstance(answer, wire.Transcribed) and answer.texts else ""
