"""`callagent bench speech`: how well a recogniser understands telephone recordings, and how soon.

A corpus is a folder with `manifest.csv` (columns file, text, category, kind) and the WAV files it names:
16 bits, mono, of any rate (heard at 8 kHz). Each file is one utterance; audio is fed as fast as it goes.

The figure is the word error rate after normalising, which makes two ways of writing the same words equal. Its rules are
fixed: a change makes every figure published before incomparable.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import re
import unicodedata
import wave
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.bench.measurement import percentiles
from callagent.errors import ProviderTimeout, UserError
from callagent.speech import Recognizer, RecognizerSettings, SpeechOptions, Transcript

_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_UNITS)} | {word: 20 + 10 * n for n, word in enumerate(_TENS)}
_VALUES["oh"] = 0
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_ORDINALS = {
    "first": "1 st", "second": "2 nd", "third": "3 rd", "fourth": "4 th", "fifth": "5 th", "sixth": "6 th",
    "seventh": "7 th", "eighth": "8 th", "ninth": "9 th", "tenth": "10 th", "eleventh": "11 th", "twelfth": "12 th",
    "thirteenth": "13 th", "fourteenth": "14 th", "fifteenth": "15 th", "sixteenth": "16 th", "seventeenth": "17 th",
    "eighteenth": "18 th", "nineteenth": "19 th", "twentieth": "20 th", "thirtieth": "30 th",
    "fortieth": "40 th", "fiftieth": "50 th", "sixtieth": "60 th", "seventieth": "70 th", "eightieth": "80 th",
    "ninetieth": "90 th", "hundredth": "100 th", "thousandth": "1000 th",
}  # fmt: skip
_ORDINAL_UNITS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
}  # fmt: skip
_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
_FILLERS = {"uh", "um", "hm", "hmm", "mm", "mhm", "er", "erm", "ah"}
_CONTRACTIONS = (
    (r"\bwon't\b", "will not"), (r"\bcan't\b|\bcannot\b", "can not"), (r"\blet's\b", "let us"), (r"n't\b", " not"),
    (r"'re\b", " are"), (r"'ve\b", " have"), (r"'ll\b", " will"), (r"'m\b", " am"), (r"'d\b", " would"),
    (r"\b(it|that|what|he|she|there|here|where|who|how)'s\b", r"\1 is"), (r"'s\b", "s"),
)  # fmt: skip
_SAME = {
    "mister": "mr", "missus": "mrs", "doctor": "dr", "okay": "ok", "saint": "st", "street": "st", "avenue": "ave",
    "road": "rd", "goodbye": "good bye", "bye-bye": "bye bye", "colour": "color", "centre": "center",
    "cheque": "check", "favourite": "favorite", "voicemail": "voice mail", "email": "e mail", "mailbox": "mail box",
}  # fmt: skip


def normalise(text: str) -> list[str]:
    """The words of `text`: lower case, no punctuation, numbers as single digits, contractions written out."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", text)
    text = re.sub(r"\$\s?(\d[\d,]*(?:\.\d+)?)", r"\1 dollars", text)
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", text)
    text = text.replace("%", " percent ").replace("&", " and ")
    text = re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text)
    for pattern, written_out in _CONTRACTIONS:
        text = re.sub(pattern, written_out, text)
    text = re.sub(r"(?<=\d)(?=[a-z])", " ", text)
    words = [_SAME.get(word, word) for word in re.sub(r"[^a-z0-9 ]", " ", text).split()]
    words = [word for word in _numbers(words) if word not in _FILLERS]
    return " ".join(_apart(word) for word in words).split()


def errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Words to be changed, added or taken out (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(reference, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def _apart(word: str) -> str:
    """Digits one by one: nobody can hear how they were grouped."""
    return " ".join(word) if word.isdigit() else word


def _numbers(words: Sequence[str]) -> list[str]:
    """Number words as digits: `twenty four` is 24, `five five` is 5 5."""
    found: list[str] = []
    value: int | None = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "and" and value and value % 100 == 0 and following in _VALUES:
            # "One hundred and five" is "one hundred five".
            continue
        if value is not None and word in _ORDINAL_UNITS and value >= 20 and value % 10 == 0:
            unit = _ORDINAL_UNITS[word]
            found.append(f"{value + unit} {_SUFFIXES.get(unit, 'th')}")
            value = None
        elif word in _SCALES and (value is not None or word == "hundred"):
            value = _scaled(1 if value is None else value, _SCALES[word])
        elif word in _VALUES:
            joined = _join(value, _VALUES[word])
            if joined is None:
                found.append(str(value))
            value = _VALUES[word] if joined is None else joined
        else:
            found += [str(value)] if value is not None else []
            value = None
            found.append(_ORDINALS.get(word, word))
    return " ".join([*found, *([str(value)] if value is not None else [])]).split()


def _scaled(value: int, scale: int) -> int:
    below = value % 1000 if scale == 100 else value
    return value - below + below * scale


def _join(value: int | None, more: int) -> int | None:
    """The number with `more` said after it; None: another number begins."""
    if value is None:
        return more
    fits = (value % 100 == 0 and value > 0) or (value % 10 == 0 and value % 100 >= 20 and 0 < more < 10)
    return value + more if fits else None


BASELINE = Path(__file__).parent / "speech_baseline.json"
ALLOWED_POINTS = 0.5
"""Percentage points of word error rate that a run may be worse than the baseline."""
FINAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Recording:
    path: Path
    text: str
    category: str
    kind: str
    """`real` or `synthetic`."""


@dataclass(frozen=True, slots=True)
class Result:
    recording: Recording
    heard: str
    seconds: float
    """Of audio."""
    final: float
    """Seconds from the end of the audio to the final transcript."""
    wrong: int
    words: int


def bench_speech(options: argparse.Namespace) -> int:
    """Run the benchmark; exit status 1 where it is worse than the baseline by more than allowed."""
    recordings = read_manifest(options.corpus)[: options.limit]
    results = asyncio.run(_transcribe_all(options.recognizer, recordings))
    report = {"recognizer": options.recognizer, "corpus": options.corpus.name, **summarise(results)}
    if options.details:
        lines = (json.dumps(_detail(result), ensure_ascii=False) for result in results)
        options.details.write_text("\n".join(lines) + "\n", encoding="utf-8")
    allowed = _allowed(options.recognizer, len(results))
    report["wer_allowed"] = allowed
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    return 1 if allowed is not None and report["wer"] > allowed else 0


def read_manifest(corpus: Path) -> list[Recording]:
    """The recordings of a corpus, all of them. Raises `UserError`."""
    manifest = corpus / "manifest.csv"
    try:
        with manifest.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            Recording(corpus / row["file"], row["text"], row.get("category", ""), row.get("kind", "")) for row in rows
        ]
    except OSError as error:
        raise UserError(f"{manifest}: cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise UserError(f"{manifest}: there is no column {error}") from None


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Word error rates in per cent, over all words of a group; latencies in milliseconds."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[f"kind {result.recording.kind}"].append(result)
        groups[f"category {result.recording.category}"].append(result)
    finals = percentiles([1000 * result.final for result in results])
    return {
        "files": len(results),
        "audio_seconds": round(sum(result.seconds for result in results), 1),
        "words": sum(result.words for result in results),
        "wer": _wer(results),
        "exact": round(100 * sum(not result.wrong for result in results) / max(len(results), 1), 1),
        "final_ms": finals,
        "groups": {name: {"files": len(group), "wer": _wer(group)} for name, group in sorted(groups.items())},
    }


def format_report(report: Mapping[str, Any]) -> str:
    lines = [
        f"{report['recognizer']} on {report['files']} files, {report['audio_seconds']} s, {report['words']} words",
        f"word error rate   {report['wer']} %   (allowed: {report['wer_allowed'] or 'no baseline'})",
        f"exact utterances  {report['exact']} %",
        f"final transcript  {report['final_ms']} ms",
    ]
    lines += [f"  {name:24} {group['wer']:6} %  {group['files']} files" for name, group in report["groups"].items()]
    return "\n".join(lines)


def _wer(results: Sequence[Result]) -> float:
    return round(100 * sum(result.wrong for result in results) / max(sum(result.words for result in results), 1), 2)


def _allowed(recognizer: str, files: int) -> float | None:
    """The baseline's word error rate and what it may be exceeded by; None: this was not measured then."""
    if not BASELINE.is_file():
        return None
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    same = baseline["recognizer"] == recognizer and baseline["files"] == files
    return round(float(baseline["wer"]) + ALLOWED_POINTS, 2) if same else None


def _detail(result: Result) -> dict[str, object]:
    recording = result.recording
    file = f"{recording.path.parent.name}/{recording.path.name}"
    return {"file": file, "text": recording.text, "heard": result.heard, "wrong": result.wrong, "words": result.words}


async def _transcribe_all(name: str, recordings: Iterable[Recording]) -> list[Result]:
    from callagent.speech import open_recognizer

    recognizer = await open_recognizer(name, SpeechOptions())
    try:
        return [await _transcribe(recognizer, recording) for recording in recordings]
    finally:
        await recognizer.close()


async def _transcribe(recognizer: Recognizer, recording: Recording) -> Result:
    pcm = _read(recording.path)
    final: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def transcribed(transcript: Transcript) -> None:
        if transcript.final and not final.done():
            final.set_result(transcript.text)

    stream = await recognizer.open(transcribed)
    try:
        stream.begin(RecognizerSettings())
        for at in range(0, len(pcm), FRAME_BYTES):
            stream.feed(pcm[at : at + FRAME_BYTES])
            await asyncio.sleep(0)
        stream.finish()
        begun = monotonic()
        async with asyncio.timeout(FINAL_SECONDS):
            heard = await final
    except TimeoutError:
        raise ProviderTimeout(f"{recording.path}: no final transcript within {FINAL_SECONDS:g} s") from None
    finally:
        stream.close()
    reference, words = normalise(recording.text), normalise(heard)
    seconds = len(pcm) / 2 / SAMPLE_RATE
    return Result(recording, heard, seconds, monotonic() - begun, errors(reference, words), len(reference))


def _read(path: Path) -> bytes:
    """16-bit PCM at 8 kHz. Raises `UserError`."""
    try:
        with wave.open(str(path), "rb") as recording:
            if (recording.getsampwidth(), recording.getnchannels()) != (2, 1):
                raise UserError(f"{path}: not 16-bit mono")
            rate, pcm = recording.getframerate(), recording.readframes(recording.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return pcm if rate == SAMPLE_RATE else _resample(pcm, rate)


def _resample(pcm: bytes, rate: int) -> bytes:
    import numpy as np
    import soxr

    return bytes(soxr.resample(np.frombuffer(pcm, dtype="<i2"), rate, SAMPLE_RATE).astype("<i2").tobytes())
