"""`callagent bench speech` and `bench models`: how well, and how soon, recognisers and language models answer.

For recognisers a corpus is a folder with `manifest.csv` (columns file, text, category, kind) and the WAV files it
names: 16 bits, mono, of any rate (heard at 8 kHz). Each file is one utterance, fed as fast as possible. The figure is
the word error rate after normalising, which makes different ways of writing the same words equal. The rules of that are
fixed, because a change would make earlier figures incomparable.

For models each utterance of a file is one request with the few tools of its situation. A call is right when exactly the
expected functions are called; its arguments are right when they are the expected ones and no others. The time of our
own rendering and parsing of FunctionGemma's format, for a step with ten functions, is measured as well.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import re
import time
import unicodedata
import wave
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from callagent.audio import FRAME_BYTES, SAMPLE_RATE
from callagent.bench.measurement import percentiles
from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.json_values import JsonObject, MutableJsonObject, number_at, object_at, parse_object
from callagent.models import Delta, LanguageModel, Message, ModelSettings, Tool
from callagent.speech import Recognizer, RecognizerSettings, SpeechOptions, Transcript

if TYPE_CHECKING:
    from callagent.config import Config

# The rules of the normaliser. `twenty four`, `24` and `2 4` must become the same words, so that the figures of a
# recogniser do not depend on how it writes numbers. A change of any rule makes the published figures incomparable.
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
_ONE_SPELLING = {
    "mister": "mr", "missus": "mrs", "doctor": "dr", "okay": "ok", "saint": "st", "street": "st", "avenue": "ave",
    "road": "rd", "goodbye": "good bye", "bye-bye": "bye bye", "colour": "color", "centre": "center",
    "cheque": "check", "favourite": "favorite", "voicemail": "voice mail", "email": "e mail", "mailbox": "mail box",
}  # fmt: skip


def normalise(text: str) -> list[str]:
    """Return the words of `text`: lower case, no punctuation, numbers as single digits, contractions written out."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", text)
    text = re.sub(r"\$\s?(\d[\d,]*(?:\.\d+)?)", r"\1 dollars", text)
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", text)
    text = text.replace("%", " percent ").replace("&", " and ")
    text = re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text)
    for pattern, written_out in _CONTRACTIONS:
        text = re.sub(pattern, written_out, text)
    text = re.sub(r"(?<=\d)(?=[a-z])", " ", text)
    words = [_ONE_SPELLING.get(word, word) for word in re.sub(r"[^a-z0-9 ]", " ", text).split()]
    words = [word for word in _digits_for_words(words) if word not in _FILLERS]
    return " ".join(_split_digits(word) for word in words).split()


def count_word_errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Return how many words must be changed, added or removed (Levenshtein's distance of words)."""
    # One row of the table at a time: `row[n]` is the distance of the reference so far to the first n words heard.
    row = list(range(len(heard) + 1))
    for number, word in enumerate(reference, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def _split_digits(word: str) -> str:
    """Return digits one by one: nobody can hear how they were grouped."""
    return " ".join(word) if word.isdigit() else word


def _digits_for_words(words: Sequence[str]) -> list[str]:
    """Return number words as digits: `twenty four` is 24, `five five` is 5 5."""
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
    """Return the number with `more` said after it; None: another number begins."""
    if value is None:
        return more
    fits = (value % 100 == 0 and value > 0) or (value % 10 == 0 and value % 100 >= 20 and 0 < more < 10)
    return value + more if fits else None


BASELINE = Path(__file__).parent / "speech_baseline.json"
ALLOWED_POINTS = 0.5
"""Percentage points of word error rate that a run may be worse than the baseline."""
FINAL_SECONDS = 60.0
"""Time for a final transcript."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One utterance of the corpus."""

    path: Path
    text: str
    category: str
    kind: str
    """`real` or `synthetic`."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a recogniser heard of one recording."""

    recording: Recording
    heard: str
    seconds: float
    """Length of the audio."""
    final: float
    """Seconds from the end of the audio to the final transcript."""
    wrong: int
    """Words that were heard wrongly, as `count_word_errors` counts them."""
    words: int
    """Words that were said."""


def bench_speech(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, 1 if they are too far above the baseline."""
    recordings = read_manifest(options.corpus)[: options.limit]
    results = asyncio.run(_transcribe_all(options.recognizer, recordings))
    report: MutableJsonObject = {
        "recognizer": options.recognizer,
        "corpus": options.corpus.name,
        **summarise_recordings(results),
    }
    if options.details:
        lines = (json.dumps(_recording_detail(result), ensure_ascii=False) for result in results)
        options.details.write_text("\n".join(lines) + "\n", encoding="utf-8")
    allowed = _allowed_rate(options.recognizer, len(results))
    report["wer_allowed"] = allowed
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    return 1 if allowed is not None and number_at(report, "wer") > allowed else 0


def read_manifest(corpus: Path) -> list[Recording]:
    """Return all recordings of a corpus. Raises `UserError`."""
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


def summarise_recordings(results: Sequence[Result]) -> JsonObject:
    """Return word error rates, in per cent of the words of a group, and latencies in milliseconds."""
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


def format_report(report: JsonObject) -> str:
    """Return the report for people."""
    lines = [
        f"{report['recognizer']} on {report['files']} files, {report['audio_seconds']} s, {report['words']} words",
        f"word error rate   {report['wer']} %   (allowed: {report['wer_allowed'] or 'no baseline'})",
        f"exact utterances  {report['exact']} %",
        f"final transcript  {report['final_ms']} ms",
    ]
    groups = object_at(report, "groups")
    for name in groups:
        group = object_at(groups, name)
        lines.append(f"  {name:24} {number_at(group, 'wer'):6} %  {group['files']} files")
    return "\n".join(lines)


def _wer(results: Sequence[Result]) -> float:
    return round(100 * sum(result.wrong for result in results) / max(sum(result.words for result in results), 1), 2)


def _allowed_rate(recognizer: str, files: int) -> float | None:
    """Return the word error rate that is still good enough by the baseline; None if that cannot be compared."""
    if not BASELINE.is_file():
        return None
    baseline = json.loads(BASELINE.read_text(encoding="utf-8"))
    # Another recogniser, or fewer files, cannot be compared.
    is_comparable = baseline["recognizer"] == recognizer and baseline["files"] == files
    return round(float(baseline["wer"]) + ALLOWED_POINTS, 2) if is_comparable else None


def _recording_detail(result: Result) -> dict[str, object]:
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
    pcm = _read_audio(recording.path)
    final: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def transcribed(transcript: Transcript) -> None:
        if transcript.final and not final.done():
            final.set_result(transcript.text)

    # Each recording has a stream of its own, so that earlier recordings do not help.
    stream = await recognizer.open(transcribed)
    try:
        stream.begin(RecognizerSettings())
        for at in range(0, len(pcm), FRAME_BYTES):
            stream.feed(pcm[at : at + FRAME_BYTES])
            # Recognisers work in tasks of this loop, which must get their turns between the frames.
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
    return Result(recording, heard, seconds, monotonic() - begun, count_word_errors(reference, words), len(reference))


def _read_audio(path: Path) -> bytes:
    """Return a recording as 16-bit PCM at 8 kHz. Raises `UserError`."""
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


UTTERANCES = Path(__file__).with_name("model_utterances.json")
_CHARACTERS_PER_TOKEN = 4
"""An estimate of the characters of a token, used where the provider does not count tokens."""
_RENDERINGS = 200
"""How often a prompt is rendered and an answer parsed; the median counts."""
_MAX_FUNCTIONS = 10
"""Functions of the step that is rendered."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A function call that a model is expected to make, or has made."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Utterance:
    """What a caller says, the functions that are offered, and those that are to be called."""

    text: str
    tools: tuple[Tool, ...]
    expected: tuple[ExpectedCall, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """How a model answered one utterance."""

    text: str
    name_right: bool
    arguments_right: bool
    expects_call: bool
    first_token_ms: float
    whole_ms: float
    tokens: float
    calls: tuple[ExpectedCall, ...]
    error: str = ""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / (self.whole_ms / 1000) if self.whole_ms else 0.0


def read_utterances(path: Path) -> tuple[date, list[Utterance]]:
    """Return the day that the file's relative dates count from, and its utterances. Raises `UserError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        tools = {name: tuple(each) for name, each in data["tools"].items()}
        found = [
            Utterance(
                each["said"],
                tools[each["tools"]],
                tuple(ExpectedCall(call["name"], call["arguments"]) for call in each["calls"]),
            )
            for each in data["utterances"]
        ]
        return date.fromisoformat(data["today"]), found
    except OSError as error:
        raise UserError(f"utterances {path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"utterances {path}: not a file of utterances: {error!r}") from None


def bench_models(config: Config, options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, always 0 because there is no goal."""
    from callagent.config import override
    from callagent.server import open_language_model

    if options.model:
        config = override(config, {"model.name": options.model})
    today, utterances = read_utterances(options.utterances or UTTERANCES)
    model = open_language_model(config)
    trials = asyncio.run(_ask_all(model, today, utterances[: options.limit]))
    figures = {"model": config.model.name, **summarise_answers(trials), **_format_cost(utterances)}
    if options.details:
        lines = [json.dumps(_answer_detail(trial), ensure_ascii=False) for trial in trials]
        options.details.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(json.dumps(figures) if options.json else _format_answers(figures))
    return 0


async def _ask_all(model: LanguageModel, today: date, utterances: Sequence[Utterance]) -> list[Trial]:
    try:
        trials, tools = [], None
        for utterance in utterances:
            if utterance.tools is not tools:
                # A first request, which is not timed, loads and prepares the model: a greeting leaves time for that.
                await ask_model(model, today, utterance)
                tools = utterance.tools
            trials.append(await ask_model(model, today, utterance))
        return trials
    finally:
        await model.close()


@dataclass(slots=True)
class _Answer:
    """The part of an answer that has come so far."""

    first_at: float = 0.0
    """Time of its first delta, on the clock `perf_counter`; 0: none has come."""
    length: int = 0
    """Characters."""
    output_tokens: int = 0
    """The provider's count; 0: it does not count."""
    calls: list[ExpectedCall] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.first_at = self.first_at or time.perf_counter()
        self.length += len(delta.text)
        self.output_tokens = delta.usage.output_tokens if delta.usage else self.output_tokens
        if call := delta.tool_call:
            self.length += len(call.name) + len(call.arguments)
            self.calls.append(ExpectedCall(call.name, _parse_arguments(call.arguments)))


async def ask_model(model: LanguageModel, today: date, utterance: Utterance) -> Trial:
    """Make one request and time it; a failure of the model counts as a wrong answer."""
    began = time.perf_counter()
    answer, error = _Answer(), ""
    # Temperature 0 gives the likeliest answer, so that a run can be repeated.
    stream = model.stream(_messages(today, utterance.text), utterance.tools, ModelSettings(temperature=0.0))
    try:
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                answer.add(delta)
    except ProviderError as failure:
        error = str(failure)
    ended = time.perf_counter()
    calls = answer.calls
    names, expected = [call.name for call in calls], [call.name for call in utterance.expected]
    right = names == expected and not error
    return Trial(
        text=utterance.text,
        name_right=right,
        arguments_right=right and all(map(_is_expected, calls, utterance.expected)),
        expects_call=bool(expected),
        first_token_ms=((answer.first_at or ended) - began) * 1000,
        whole_ms=(ended - began) * 1000,
        tokens=answer.output_tokens or answer.length / _CHARACTERS_PER_TOKEN,
        calls=tuple(calls),
        error=error,
    )


def summarise_answers(trials: Sequence[Trial]) -> JsonObject:
    """Return how many answers were right, and how long they took."""
    calling = [trial for trial in trials if trial.expects_call]
    others = [trial for trial in trials if not trial.expects_call]
    return {
        "utterances": len(trials),
        "function_right": sum(trial.name_right for trial in calling),
        "arguments_right": sum(trial.arguments_right for trial in calling),
        "with_function": len(calling),
        "refused_right": sum(trial.name_right for trial in others),
        "without_function": len(others),
        "errors": sum(bool(trial.error) for trial in trials),
        "first_token_ms": percentiles([trial.first_token_ms for trial in trials if not trial.error]),
        "answer_ms": percentiles([trial.whole_ms for trial in trials if not trial.error]),
        "tokens_per_second": percentiles([trial.tokens_per_second for trial in trials if not trial.error])["p50"],
    }


def _messages(today: date, utterance: str) -> list[Message]:
    # The day stands there in words for models, and in figures for the model `rules`.
    text = (
        f"You are the voice agent of a telephone line. Today is {today:%A}, {today.day} {today:%B %Y} "
        f"({today.isoformat()}). Call the function that the caller asks for. When none fits, say so."
    )
    return [{"role": "system", "content": text}, {"role": "user", "content": utterance}]


def _is_expected(call: ExpectedCall, expected: ExpectedCall) -> bool:
    given = {key: value for key, value in call.arguments.items() if value not in (None, "")}
    return given.keys() == expected.arguments.keys() and all(
        _comparable(given[key]) == _comparable(value) for key, value in expected.arguments.items()
    )


def _comparable(value: object) -> object:
    """Return a value in a form that is equal for 50 and 50.0, and for "Okafor" and "okafor."."""
    if isinstance(value, str):
        return re.sub(r"[\W_]+", " ", value).strip().casefold()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _parse_arguments(arguments: str) -> JsonObject:
    """Return a call's arguments; none if they are not a JSON object."""
    try:
        return parse_object(arguments)
    except ValueError:
        return {}


def _format_cost(utterances: Sequence[Utterance]) -> dict[str, float]:
    """Return the milliseconds to render a prompt with ten functions and to parse a call, in FunctionGemma's format."""
    from callagent.models.functiongemma import FUNCTIONGEMMA, FunctionCall, format_value, parse_output, render_prompt

    tools = list({tool["function"]["name"]: tool for each in utterances for tool in each.tools}.values())[
        :_MAX_FUNCTIONS
    ]
    messages = _messages(date(2026, 1, 1), "Where is my parcel?")
    call = FunctionCall("track_parcel", {"number": "441902"})
    body = ",".join(f"{key}:{format_value(value)}" for key, value in call.arguments.items())
    answer = f"{FUNCTIONGEMMA.start_call}call:{call.name}{{{body}}}{FUNCTIONGEMMA.end_call}"
    return {
        "functions_rendered": len(tools),
        "render_ms": _median_ms(lambda: render_prompt(messages, tools)),
        "parse_ms": _median_ms(lambda: parse_output(answer, tools)),
    }


def _median_ms(run: Callable[[], object]) -> float:
    """Return the median of the milliseconds that `run` takes."""
    times = []
    for _ in range(_RENDERINGS):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1000)
    return round(sorted(times)[_RENDERINGS // 2], 4)


def _answer_detail(trial: Trial) -> JsonObject:
    return {
        "said": trial.text,
        "function_right": trial.name_right,
        "arguments_right": trial.arguments_right,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in trial.calls],
        "answer_ms": round(trial.whole_ms, 1),
        "error": trial.error,
    }


def _format_answers(figures: JsonObject) -> str:
    first, whole = object_at(figures, "first_token_ms"), object_at(figures, "answer_ms")
    return "\n".join(
        [
            f"model              {figures['model']}",
            f"function right     {figures['function_right']} of {figures['with_function']}",
            f"  and arguments    {figures['arguments_right']} of {figures['with_function']}",
            f"no function, right {figures['refused_right']} of {figures['without_function']}",
            f"errors             {figures['errors']}",
            f"first token        p50 {first['p50']:.0f} ms   p99 {first['p99']:.0f} ms",
            f"whole answer       p50 {whole['p50']:.0f} ms   p99 {whole['p99']:.0f} ms",
            f"tokens a second    {figures['tokens_per_second']:.0f}",
            f"format             render {figures['render_ms']:.3f} ms ({figures['functions_rendered']} functions), "
            f"parse {figures['parse_ms']:.3f} ms",
        ]
    )
