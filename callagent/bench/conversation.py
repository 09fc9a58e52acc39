"""`callagent bench conversation`: how soon a filler starts, the agent stops and the agent answers, on the wire.

A server process with scripted model, recogniser and voice, and the real voice activity, is called over SIP and RTP, or
on a media stream as Twilio would. The caller's utterances are recordings whose first and last sound are known, and each
exchange is measured at the caller's end. Both processes share the machine's monotonic clock. A reaction that does not
come counts as infinitely late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import struct
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from time import monotonic

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.bench.measurement import AGENT, BenchServer, bench_server, longest_pause, percentiles, spoken_span
from callagent.errors import UserError
from callagent.json_values import JsonObject, MutableJsonObject, number_at, objects_at, text_at
from callagent.phone import Line, StreamPhone, dial_sip, read_wav
from callagent.records import read_records

GAP_SECONDS = 0.3
"""Silence of the agent after which its next sound counts as a new one."""
EARLIEST_ANSWER_SECONDS = 0.2
"""Time after the caller's last sound before which a sound of the agent is not yet the answer."""
MAX_LATE_SECONDS = 3.0
"""Time that an answer may be late before it counts as missed."""
_MIN_SOUND = 300
"""Sample value above which a frame has sound."""
_FADE_SAMPLES = 40
"""A frame without sound after its first samples is a fade-out, in which nothing is said."""
_MISSED = math.inf


@dataclass(frozen=True, slots=True)
class Utterance:
    """A recording of the caller."""

    frames: tuple[bytes, ...]
    begins: float
    """Seconds from the start of the first frame to the first sound."""
    ends: float
    """Seconds from the start of the first frame to the end of the last sound."""
    name: str = ""

    @classmethod
    def of(cls, pcm: bytes, name: str = "") -> Utterance:
        """Return the utterance of a recording. Raises `ValueError` if the recording has no speech."""
        begins, ends = spoken_span(pcm)
        frames = tuple(pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES))
        return cls(frames, begins, ends, name)


@dataclass(slots=True)
class Trial:
    """The times of one exchange in seconds; infinite for an event that did not happen."""

    recording: str = ""
    """Name of the recording that interrupted."""
    span: tuple[float, float] = (_MISSED, _MISSED)
    """When the interruption began, and when its answer began or was given up, on the monotonic clock."""
    filler_heard: float = _MISSED
    """When the filler began, on the monotonic clock."""
    barge_in: float = _MISSED
    """From the caller's first sound to the last packet with speech that reached the caller before the answer."""
    overhead: float = _MISSED
    """From the caller's last sound to the first packet of the answer, less the configured delays."""
    clears: int = 0
    """Messages that emptied the carrier's buffer, from the interruption to its answer."""
    heard: float = 0.0
    """Length of the interrupted answer that reached the caller."""

    @property
    def missed(self) -> bool:
        """Whether the interruption got no answer; the agent is then not ready for the next exchange."""
        return math.isinf(self.overhead)


class CallerSide:
    """The caller's end of a call: it sends utterances, and notes when they left and when the agent made sounds.

    A packet carries the sound of the 20 ms before it was sent.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._utterance: tuple[Utterance, list[float]] = Utterance((), 0.0, 0.0), []
        """The utterance and when each of its packets left; replaced as one, because the pump's thread reads it."""
        self.sound_at = 0.0
        """When the agent's last packet with sound arrived."""
        self.began_at = 0.0
        """When the agent's present sound began."""
        self.stopped_at = 0.0
        """When the last packet of the agent's previous sound arrived."""
        self.heard = 0.0
        """Seconds from the first to the last frame of the agent's previous sound, without its fade-out."""
        self._frames = self._first = self._last = 0
        """Number of the agent's frames so far, and of those that begin and end its present sound."""

    def speak(self, utterance: Utterance) -> None:
        self._utterance = utterance, []

    @property
    def is_speaking(self) -> bool:
        utterance, sent = self._utterance
        return len(sent) < len(utterance.frames)

    @property
    def onset(self) -> float:
        """When the caller's first sound was made; infinite while it is not sent."""
        return self._time_of(self._utterance[0].begins)

    @property
    def end(self) -> float:
        """When the caller's last sound ended; infinite while it is not sent."""
        return self._time_of(self._utterance[0].ends)

    def next_frame(self) -> bytes | None:
        """Return the next frame to send; called on the pump's thread."""
        utterance, sent = self._utterance
        position = len(sent)
        if position >= len(utterance.frames):
            return None
        sent.append(self.clock())
        return utterance.frames[position]

    def on_frame(self, pcm: bytes, now: float) -> None:
        self._frames += 1
        samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
        # Silence and faint noise do not count as sounds of the agent.
        if max(samples) <= _MIN_SOUND:
            return
        # After a gap a new sound begins; the attributes then keep the end and the length of the previous one.
        if now - self.sound_at > GAP_SECONDS:
            self.stopped_at, self.began_at = self.sound_at, now
            self.heard = (self._last - self._first + 1) * FRAME_SECONDS
            self._first = self._last = self._frames
        self.sound_at = now
        if max(samples[_FADE_SAMPLES:]) > _MIN_SOUND:
            self._last = self._frames

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Return when `condition` holds. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the condition is checked every 5 ms
                await asyncio.sleep(0.005)

    def is_silent_for(self, seconds: float) -> bool:
        """Return whether the agent has spoken and has now been silent for so long."""
        return self.sound_at > 0 and self.clock() - self.sound_at > seconds

    async def wait_for_answer(self, seconds: float) -> None:
        """Wait until the agent begins to speak after the utterance. Raises `TimeoutError` after `seconds`."""
        # A sound that begins while the caller speaks, or right after, is not the answer: it was decided on before.
        await self.wait_until(lambda: not self.is_speaking, len(self._utterance[0].frames) * FRAME_SECONDS + seconds)
        await self.wait_until(lambda: self.began_at > self.end + EARLIEST_ANSWER_SECONDS, seconds)

    def _time_of(self, seconds: float) -> float:
        """Return when the sound at `seconds` of the utterance was made; infinite while it is not sent."""
        # The end of a frame belongs to it: a recording may end with its last sound.
        index = max(0, math.ceil(seconds / FRAME_SECONDS - 1e-6) - 1)
        sent = self._utterance[1]
        return sent[index] - (index + 1) * FRAME_SECONDS + seconds if index < len(sent) else math.inf


@dataclass(frozen=True, slots=True)
class Plan:
    """What the caller says in one exchange, and when."""

    question: Utterance
    interruption: Utterance
    after: float
    """Seconds that the agent speaks before it is interrupted."""
    configured: float
    """Seconds of silence and of the scripted engines that an answer takes in any case."""


async def exchange(side: CallerSide, plan: Plan, clears: Callable[[], int]) -> Trial:
    """Carry out one exchange and return its times.

    The caller asks a question. The agent answers with the filler of a slow function and then with a long answer, which
    the caller interrupts; the agent answers the interruption. `clears` returns how often the carrier's buffer was
    emptied so far.
    """
    trial = Trial(plan.interruption.name)
    try:
        side.speak(plan.question)
        await side.wait_for_answer(plan.configured + MAX_LATE_SECONDS)
        trial.filler_heard = filler = side.began_at
        await side.wait_until(lambda: side.began_at > filler and side.clock() - side.began_at > plan.after, 10)
        await _interrupt(side, plan, clears, trial)
        await side.wait_until(lambda: side.is_silent_for(2 * GAP_SECONDS), 10)
    except TimeoutError:
        pass
    return trial


async def _interrupt(side: CallerSide, plan: Plan, clears: Callable[[], int], trial: Trial) -> None:
    """Interrupt the agent and enter the times into `trial`. Raises `TimeoutError` if no answer comes."""
    before, began = clears(), side.clock()
    side.speak(plan.interruption)
    try:
        await side.wait_for_answer(plan.configured + MAX_LATE_SECONDS)
    except TimeoutError:
        if side.is_silent_for(GAP_SECONDS):
            trial.barge_in = side.sound_at - side.onset
        raise
    finally:
        trial.clears, trial.span = clears() - before, (began, side.clock())
    trial.barge_in, trial.heard = side.stopped_at - side.onset, side.heard
    trial.overhead = side.began_at - side.end - plan.configured


async def ask(side: CallerSide, question: Utterance, max_seconds: float) -> float:
    """Ask, and return the seconds from the caller's last sound to the first packet of the answer.

    The result is infinite if no answer comes within `max_seconds`.
    """
    side.speak(question)
    try:
        await side.wait_for_answer(max_seconds)
        seconds = side.began_at - side.end
        await side.wait_until(lambda: side.is_silent_for(2 * GAP_SECONDS), 10)
    except TimeoutError:
        return _MISSED
    return seconds


CALLS_AT_ONCE = 8
TRIALS, EMBEDDED_TRIALS = 200, 40
SENTENCE = "This answer goes on and on so that there is time enough to interrupt it."
LONG_ANSWER = " ".join([SENTENCE] * 6)
SECONDS_PER_CHARACTER = 0.05
"""Pace of the scripted voice, at which a sentence is a whole number of frames."""
ENDPOINTING_SECONDS = 0.5
MAX_PAUSE_SECONDS = 0.3
"""An utterance of the caller has only pauses that are shorter."""
RECOGNISER_SECONDS = 0.1
MODEL_SECONDS = 0.15
"""Delays of the scripted engines before the answer that is measured."""
CONFIGURED_SECONDS = ENDPOINTING_SECONDS + RECOGNISER_SECONDS + MODEL_SECONDS
EMBEDDED_ANSWER_SECONDS = 10.0
GOALS: Mapping[str, tuple[float | None, float | None]] = {
    "filler_start_ms": (None, 150),
    "barge_in_ms": (200, 300),
    "answer_overhead_ms": (40, 100),
    "embedded_answer_ms": (700, None),
    "control_late_ms": (None, None),
}
"""Limits of the median and the 99th percentile; None: no goal. The control shows the delays of the machine itself."""
ACCOUNT, TOKEN = "AC" + "0" * 32, "bench"
CONTROL_SECONDS = 0.02
"""Sleep of the control between two measurements."""


@dataclass(frozen=True, slots=True)
class Speech:
    """The recordings that the callers play."""

    question: Utterance
    interruptions: tuple[Utterance, ...]
    """One for each trial."""
    left_out: int
    """Number of recordings that are not exactly one turn."""


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a run."""

    figures: Mapping[str, Sequence[float]]
    """Milliseconds by the names of `GOALS`; infinite for an event that did not happen."""
    clears: Sequence[int] | None = None
    """Messages in each trial that emptied the carrier's buffer; None: the wire has none."""
    heard: Sequence[tuple[int, int | None]] = ()
    """Words of each interrupted answer that reached the caller, and how many of them the record has."""
    slow: Sequence[JsonObject] = ()
    """The interruptions that were over the goal of a 99th percentile."""

    @property
    def odd_clears(self) -> int:
        """Number of trials in which the carrier's buffer was not emptied exactly once."""
        return sum(count != 1 for count in self.clears or ())

    @property
    def heard_wrong(self) -> int:
        """Number of interruptions whose record has another count of heard words than the wire."""
        return sum(heard != recorded for heard, recorded in self.heard)

    @property
    def met(self) -> bool:
        return (
            not self.odd_clears
            and not self.heard_wrong
            and all(_met(values, GOALS[name]) for name, values in self.figures.items())
        )


async def _oversleep(late: list[tuple[float, float]]) -> None:
    """Measure, as the control, how late the machine wakes a task that does nothing in the measuring process.

    Appends for each waking its time and the milliseconds that it was late.
    """
    while True:
        due = monotonic() + CONTROL_SECONDS
        await asyncio.sleep(CONTROL_SECONDS)
        now = monotonic()
        late.append((now, 1000 * (now - due)))


@asynccontextmanager
async def _dialled(server: BenchServer, wire: str, caller: str) -> AsyncIterator[tuple[Line, Callable[[], int]]]:
    """Call the server; yield the line, and a function that returns how often the carrier's buffer was emptied."""
    if wire == "twilio":
        fields = {"AccountSid": ACCOUNT}
        async with StreamPhone.dial(server.http + "/twilio/voice", TOKEN, caller, "agent", fields) as phone:
            yield phone, lambda: phone.media.cleared
    else:
        async with dial_sip(server.uri, caller) as line:
            yield line, lambda: 0


@asynccontextmanager
async def _greeted(server: BenchServer, wire: str, caller: str) -> AsyncIterator[tuple[CallerSide, Callable[[], int]]]:
    """Call the server and wait for the end of the greeting; yield the caller's side, and the function for clears."""
    async with _dialled(server, wire, caller) as (line, clears):
        side = CallerSide()
        line.media.start(side.on_frame, side.next_frame)
        await side.wait_until(lambda: side.is_silent_for(0.8), 20)
        yield side, clears


async def _call(server: BenchServer, wire: str, caller: str, plans: Sequence[Plan]) -> list[Trial]:
    """Carry out a trial for each plan; after a miss the scripts are out of step, so the rest needs another call."""
    left, measured = deque(plans), list[Trial]()
    while left:
        async with _greeted(server, wire, caller) as (side, clears):
            measured.append(await exchange(side, left.popleft(), clears))
            while left and not measured[-1].missed:
                measured.append(await exchange(side, left.popleft(), clears))
    return measured


def _scripts(folder: Path, trials: int) -> dict[str, str]:
    """Write the scripts of recogniser, model and voice, and return the settings that name them.

    JSON is written, because YAML reads it.
    """
    stop = {"text": "stop that please", "partials": ["stop", "stop that"], "delay": RECOGNISER_SECONDS}
    answer: JsonObject = {"text": "Very well.", "delay": MODEL_SECONDS}
    # A recording with a pause in it is several utterances to the recogniser.
    transcripts = [stop] * trials * 8
    answers: list[JsonObject] = [
        {"calls": [{"name": "slow_look_up", "arguments": {}}]},
        {"text": LONG_ANSWER},
        answer,
    ]
    (folder / "recognizer.yaml").write_text(json.dumps(transcripts))
    (folder / "voice.yaml").write_text(json.dumps({"seconds_per_character": SECONDS_PER_CHARACTER}))
    return _model_script(folder, answers * trials) | {
        "SPEECH__RECOGNIZER": f"script:{folder / 'recognizer.yaml'}",
        "SPEECH__VOICE": f"script:{folder / 'voice.yaml'}",
        "SPEECH__ENDPOINTING": str(ENDPOINTING_SECONDS),
        "TWILIO__ACCOUNT_SID": ACCOUNT,
        "TWILIO__AUTH_TOKEN": TOKEN,
    }


def _model_script(folder: Path, entries: Sequence[JsonObject]) -> dict[str, str]:
    (folder / "model.yaml").write_text(json.dumps(entries))
    return {"MODEL__NAME": f"script:{folder / 'model.yaml'}"}


async def _measure(wire: str, speech: Speech) -> Result:
    plans = [
        # The agent is interrupted at another word each time.
        Plan(speech.question, utterance, 1.0 + number % 10 / 10, CONFIGURED_SECONDS)
        for number, utterance in enumerate(speech.interruptions)
    ]
    # Several calls at once, each with its share of the trials, so that a run is shorter.
    callers = [f"bench{number}" for number in range(min(CALLS_AT_ONCE, len(plans)))]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scripts = _scripts(folder, -(-len(plans) // len(callers)))
        server = await stack.enter_async_context(bench_server(folder, scripts, http=wire == "twilio"))
        late: list[tuple[float, float]] = []
        control = asyncio.create_task(_oversleep(late))
        measured = await asyncio.gather(
            *(_call(server, wire, caller, plans[number :: len(callers)]) for number, caller in enumerate(callers))
        )
        control.cancel()
        # The records of the last calls are written shortly after they have ended.
        await asyncio.sleep(1.0)
        records = sorted(read_records(folder / "calls.db"), key=lambda record: str(record["started_at"]))
    by_caller = {caller: [one for one in records if one["from_number"] == caller] for caller in callers}
    trials = [trial for one in measured for trial in one]
    fillers, heard = list[float](), list[tuple[int, int | None]]()
    for caller, one in zip(callers, measured, strict=True):
        started = _function_starts(by_caller[caller])
        fillers += [filler_seconds(started, trial.filler_heard) for trial in one]
        reached = [words_within(trial.heard) for trial in one if not trial.missed]
        heard += zip_longest(reached, _words_recorded(by_caller[caller])[: len(reached)])
    figures = {
        "filler_start_ms": [1000 * seconds for seconds in fillers],
        "barge_in_ms": [1000 * trial.barge_in for trial in trials],
        "answer_overhead_ms": [1000 * trial.overhead for trial in trials],
        "control_late_ms": [milliseconds for _, milliseconds in late],
    }
    clears = [trial.clears for trial in trials] if wire == "twilio" else None
    return Result(figures, clears, heard, slow_interruptions(trials, late))


async def _measure_embedded(wire: str, speech: Speech) -> Result:
    """Measure one call with the embedded recogniser and voice in their default settings, and a scripted model."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Each answer is different, because a repeated one would be played from the voice's cache.
        answers = [{"text": f"Very well, I have noted number {number}."} for number in range(len(speech.interruptions))]
        settings = _model_script(folder, answers) | {"TWILIO__ACCOUNT_SID": ACCOUNT, "TWILIO__AUTH_TOKEN": TOKEN}
        server = await stack.enter_async_context(bench_server(folder, settings, http=wire == "twilio"))
        side, _ = await stack.enter_async_context(_greeted(server, wire, "bench0"))
        late: list[tuple[float, float]] = []
        control = asyncio.create_task(_oversleep(late))
        answered = [1000 * await ask(side, utterance, EMBEDDED_ANSWER_SECONDS) for utterance in speech.interruptions]
        control.cancel()
    return Result({"embedded_answer_ms": answered, "control_late_ms": [milliseconds for _, milliseconds in late]})


def slow_interruptions(trials: Sequence[Trial], late: Sequence[tuple[float, float]]) -> list[JsonObject]:
    """Return each figure of an interruption that is over its goal.

    It has the recording, the milliseconds (None: the event did not happen), and the control's greatest lateness in the
    same time, which is the machine's and not the server's.
    """
    found: list[JsonObject] = []
    for trial in trials:
        for name, seconds in ("barge_in_ms", trial.barge_in), ("answer_overhead_ms", trial.overhead):
            if 1000 * seconds <= (GOALS[name][1] or math.inf):
                continue
            began, ended = trial.span
            control = max((most for at, most in late if began <= at <= ended), default=0.0)
            took = round(1000 * seconds, 1) if math.isfinite(seconds) else None
            found.append(
                {"figure": name, "recording": trial.recording, "ms": took, "control_late_ms": round(control, 1)}
            )
    return found


def filler_seconds(started: Sequence[float], heard: float) -> float:
    """Return the seconds from a function's start to its filler, with the start that is nearest to the filler.

    The result is negative if the filler is heard before the function notes its start, and infinite without a filler.
    """
    return min((heard - start for start in started), key=abs, default=math.inf)


def words_within(seconds: float) -> int:
    """Return how many words of the long answer are heard, each at least by half, in its first `seconds`."""
    start, count = 0.0, 0
    for word in LONG_ANSWER.split():
        length = (len(word) + 1) * SECONDS_PER_CHARACTER
        # The middle of a word may be the boundary of two frames.
        count += start + length / 2 <= seconds + 1e-6
        start += length
    return count


def _function_starts(records: Sequence[JsonObject]) -> list[float]:
    metrics = [metric for record in records for metric in objects_at(record, "metrics")]
    return [number_at(metric, "value") for metric in metrics if metric["name"] == "STARTED"]


def _words_recorded(records: Sequence[JsonObject]) -> list[int]:
    """Return how many words the record has of each interrupted answer, in order."""
    turns = [turn for record in records for turn in objects_at(record, "turns")]
    return [len(text_at(turn, "agent_response").split()) for turn in turns if turn["barge_in"]]


def speech_of(folder: Path, trials: int) -> Speech:
    """Choose what is said in `trials` trials, evenly among the folder's recordings that are one turn each.

    A recording with a pause of `MAX_PAUSE_SECONDS` is left out, because the agent answers in the pause; so is one
    without a sound above -58 dBFS. The question is always the same. Raises `UserError` if no recording is left.
    """
    recordings = sorted(folder.rglob("*.wav"))
    found = [
        utterance for path in recordings if (utterance := _one_turn(read_wav(path), str(path.relative_to(folder))))
    ]
    if not found:
        raise UserError(f"{folder} holds no WAV files of speech without pauses; name another folder with --callers")
    question = min(_utterances_of(AGENT / "callers"), key=lambda utterance: utterance.ends - utterance.begins)
    step = max(1.0, len(found) / trials)
    chosen = tuple(found[int(number * step) % len(found)] for number in range(trials))
    return Speech(question, chosen, len(recordings) - len(found))


def _one_turn(pcm: bytes, name: str) -> Utterance | None:
    try:
        return Utterance.of(pcm, name) if longest_pause(pcm) < MAX_PAUSE_SECONDS else None
    except ValueError:
        return None


def _utterances_of(folder: Path) -> list[Utterance]:
    return [Utterance.of(read_wav(path)) for path in sorted(folder.glob("*.wav"))]


def bench_conversation(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, 1 when a goal is missed."""
    trials = options.trials or (EMBEDDED_TRIALS if options.embedded else TRIALS)
    speech = speech_of(options.callers or AGENT / "callers", trials)
    result = asyncio.run((_measure_embedded if options.embedded else _measure)(options.wire, speech))
    print(json.dumps(_report(result, speech)) if options.json else _text(result, speech))
    return 0 if result.met else 1


def _report(result: Result, speech: Speech) -> JsonObject:
    report: MutableJsonObject = {}
    for name, values in result.figures.items():
        median, tail = GOALS[name]
        # JSON has no infinity: null stands for an event that did not happen.
        figure = {key: value if math.isfinite(value) else None for key, value in percentiles(values).items()}
        report[name] = {**figure, "missed": _missed(values), "goal_p50": median, "goal_p99": tail}
    report["recordings_left_out"] = speech.left_out
    if result.heard:
        report["heard_words"] = {"interruptions": len(result.heard), "wrong": result.heard_wrong}
    if result.clears is not None:
        report["clears"] = {"trials": len(result.clears), "not_exactly_one": result.odd_clears}
    report["slow"] = list(result.slow)
    return report


def _text(result: Result, speech: Speech) -> str:
    lines = []
    for name, values in result.figures.items():
        figure, (median, tail) = percentiles(values), GOALS[name]
        lines.append(
            f"{name:<20} p50 {figure['p50']:6.1f}  p99 {figure['p99']:6.1f}  max {figure['max']:6.1f}  "
            f"(goals {median or '-'} and {tail or '-'}, {figure['count']} samples, {_missed(values)} missed)"
        )
    if result.heard:
        lines.append(f"words heard: wrong in the record of {result.heard_wrong} of {len(result.heard)} interruptions")
    lines += [
        f"slow: {one['figure']} of {one['recording']} {one['ms']}, the control {one['control_late_ms']} late"
        for one in result.slow
    ]
    if result.clears is not None:
        lines.append(f"clear messages: other than one in {result.odd_clears} of {len(result.clears)} interruptions")
    if speech.left_out:
        lines.append(f"left out: {speech.left_out} recordings with a pause of {MAX_PAUSE_SECONDS} s or more, or silent")
    return "\n".join(lines)


def _missed(values: Sequence[float]) -> int:
    return sum(map(math.isinf, values))


def _met(values: Sequence[float], goals: tuple[float | None, float | None]) -> bool:
    median, tail = goals
    figure = percentiles(values)
    low = median is None or figure["p50"] <= median
    return bool(values and low and (tail is None or figure["p99"] <= tail))
