"""The test caller, who follows a script step by step.

A script is a YAML list; each entry is one of

    - say: "where is my parcel"       # when the agent has paused
    - play: caller.wav                # a recording instead
    - mumble: 1.5                     # seconds of speech without words
    - press: "84276#"
    - stay_silent: 20                 # when the agent has paused: wait until it speaks again, at most 20 seconds
    - wait_for: "arrives on"          # wait until words of the agent match this regular expression
    - interrupt: "stop please"        # while the agent speaks, `after` seconds into its utterance
      after: 1.0
    - backchannel: "mm-hm"            # as `interrupt`, but the agent is expected to go on speaking
    - noise: -35                      # from here on, dB below full scale; `off` ends it
    - packet_loss: 5                  # from here on, per cent of what we send
    - wait: 2.0
    - hang_up: true
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from callagent.errors import UserError
from callagent.phone.figures import CallerAction, Figures, measure
from callagent.phone.handset import AgentUtterance, Earpiece, Microphone, mumble, read_wav, synthesise
from callagent.phone.lines import Line
from callagent.speech import Voice

_VERBS = (
    *("say", "play", "mumble", "press", "stay_silent", "wait_for", "interrupt", "backchannel", "noise"),
    *("packet_loss", "wait", "hang_up"),
)
_SPOKEN_OVER_AGENT = ("interrupt", "backchannel")
_MIN_NOISE_LEVEL = -90.0
"""Decibels; the least level of 16-bit samples."""
_MAX_STEP_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script."""

    verb: str
    value: str
    """What to say, play, press or wait for, as written; numbers are checked when the script is read."""
    after: float = 1.0
    """Seconds into the agent's utterance, for `interrupt` and `backchannel`."""


def load_script(path: Path) -> list[Step]:
    """Read a script. Raises `UserError` with file, entry and remedy."""
    # Imported here: most calls of the phone have no script.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        entries = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8: {error}") from None
    except YAMLError as error:
        raise UserError(
            f"{path}:{_error_line(error)}: not valid YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    if not isinstance(entries, list):
        raise UserError(f"{path}: a script is a list of steps such as `- say: hello`")
    return [_parse_step(path, number, entry) for number, entry in enumerate(entries, 1)]


def _error_line(error: Exception) -> int:
    """Return the line of a YAML error, counted from 1."""
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else 1


def _parse_step(path: Path, number: int, entry: object) -> Step:
    fields: dict[str, object] = {str(key): value for key, value in entry.items()} if isinstance(entry, dict) else {}
    verbs = [verb for verb in _VERBS if verb in fields]
    if len(verbs) != 1:
        raise UserError(f"{path}: step {number} needs one of {', '.join(_VERBS)}")
    verb = verbs[0]
    place = f"{path}: step {number} ({verb})"
    known = {verb, "after"} if verb in _SPOKEN_OVER_AGENT else {verb}
    if unknown := set(fields) - known:
        raise UserError(f"{place}: unknown key '{min(unknown)}'; known here: {', '.join(sorted(known))}")
    # YAML 1.1 reads `off` as false.
    if verb == "noise" and fields[verb] is False:
        fields[verb] = "off"
    if not isinstance(fields[verb], str | int | float):
        raise UserError(f"{place}: needs a text or a number, not {fields[verb]!r}")
    value = str(fields[verb])
    # The path of a recording is relative to the script, wherever the command is run.
    if verb == "play":
        value = str(path.parent / value)
    return check_step(Step(verb, value, _parse_seconds(fields.get("after", 1.0), f"{place}: after")), place)


def check_step(step: Step, place: str) -> Step:
    """Return the step. Raises `UserError` if its value cannot be carried out."""
    if step.verb == "press" and not re.fullmatch(r"[0-9*#A-D]{1,64}", step.value):
        raise UserError(f"{place}: '{step.value}' are not keys of a telephone (0-9 * # A-D)")
    if step.verb == "wait_for":
        try:
            re.compile(step.value)
        except re.error as error:
            raise UserError(f"{place}: '{step.value}' is not a regular expression: {error}") from None
    match step.verb:
        case "wait" | "mumble" | "stay_silent":
            _parse_seconds(step.value, place)
        case "packet_loss":
            _parse_number(step.value, 0, 100, f"{place} needs per cent")
        case "noise" if step.value != "off":
            _parse_number(step.value, _MIN_NOISE_LEVEL, 0, f"{place} needs 'off' or decibels below full scale")
    return step


def _parse_seconds(value: object, place: str) -> float:
    return _parse_number(value, 0, _MAX_STEP_SECONDS, f"{place} needs seconds")


def _parse_number(value: object, least: float, most: float, what: str) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else least - 1
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise UserError(f"{what}, {least:g} to {most:g}, not '{value}'")
    return number


def steps_from(say: Sequence[str] | None, play: Sequence[Path] | None, digits: str | None) -> list[Step]:
    """Return the script that the options `--say`, `--play` and `--dtmf` stand for."""
    steps = [Step("say", text) for text in say or ()] + [Step("play", str(path)) for path in play or ()]
    # Keys first: a menu asks for them before anybody can be spoken to.
    if digits:
        steps.insert(0, check_step(Step("press", digits), "--dtmf"))
    return steps


PhoneEvent = dict[str, object]
"""Something that happened in the call: `{"at": seconds since the answer, "event": its kind, "text": …}`."""
Report = Callable[[PhoneEvent], None]
"""Prints or collects one event."""

_TURN_PAUSE = 1.1
"""Seconds of the agent's silence after which a polite caller speaks."""
_LAST_WORDS = 3.0
"""Seconds for the agent's last words to be recognised when the call is over."""
_MAX_WAIT = 25.0
"""Seconds that the caller waits for the agent to say something."""


class Caller:
    """The caller of one call, who follows a script."""

    def __init__(
        self,
        line: Line,
        earpiece: Earpiece,
        microphone: Microphone,
        voice: Voice | None,
        report: Report,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` returns the monotonic seconds that earpiece, microphone and line use as well."""
        self._line = line
        self._earpiece = earpiece
        self._microphone = microphone
        self._voice = voice
        self._report = report
        self._clock = clock or monotonic
        self._answered_at = self._clock()
        self._actions: list[CallerAction] = []
        self._not_heard: list[str] = []
        self._spoke_at: float | None = None
        self._seen = 0
        """The number of the agent's utterances when the caller last did something."""
        self._matched = 0
        """The number of utterances that `wait_for` steps have used up: an utterance matches one step at most."""

    async def run(self, steps: Sequence[Step]) -> None:
        """Follow the script, then listen until the agent has nothing more to say."""
        for step in steps:
            # Words from before the end of the call may still be recognised, so `wait_for` is carried out even after it.
            if self._line.ended.done() and step.verb != "wait_for":
                return
            await self._carry_out(step)
        await self._wait_for_pause()
        # An utterance is reported once it is transcribed, so wait for the transcript of the last one.
        while self._earpiece.recognising:
            await self._wait_for_change(2.0)

    def report_utterance(self, utterance: AgentUtterance) -> None:
        """Report an utterance of the agent; the first one after the caller's words gets the response delay."""
        event: PhoneEvent = {"at": round(utterance.started, 3), "event": "agent", "text": utterance.text}
        event["seconds"] = round((utterance.ended or utterance.started) - utterance.started, 2)
        if self._spoke_at is not None and utterance.started > self._spoke_at:
            event["response_delay"] = round(utterance.started - self._spoke_at, 3)
            self._spoke_at = None
        self._report(event)

    def figures(self) -> Figures:
        """Return the figures of the call so far."""
        figures = measure(self._actions, self._earpiece.spans, self._now())
        figures.words_heard = sum(len((heard.text or "").split()) for heard in self._earpiece.utterances)
        figures.not_heard = list(self._not_heard)
        return figures

    async def _carry_out(self, step: Step) -> None:
        # A polite caller waits for the agent's pause before speaking; the other steps test what happens otherwise.
        match step.verb:
            case "say" | "play" | "mumble":
                await self._wait_for_pause()
                await self._speak(step)
            case "interrupt" | "backchannel":
                # If the agent says nothing in time, the words are spoken all the same, into the silence.
                await self._wait_for_speech(step.after)
                await self._speak(step)
            case "press":
                await self._wait_for_pause()
                await self._press(step.value)
            case "stay_silent":
                await self._wait_for_pause()
                self._seen = len(self._earpiece.utterances)
                await self._wait_until(lambda: len(self._earpiece.utterances) > self._seen, float(step.value))
            case "wait_for":
                await self._wait_for_words(re.compile(step.value, re.IGNORECASE))
            case "wait":
                await self._wait_until(lambda: False, float(step.value))
            case "noise":
                self._microphone.make_noise(None if step.value == "off" else float(step.value))
            case "packet_loss":
                self._line.lose(float(step.value) / 100)
            case "hang_up":
                await self._line.hang_up()

    async def _press(self, digits: str) -> None:
        began = self._now()
        self._report({"at": began, "event": "keys", "text": digits})
        self._seen = len(self._earpiece.utterances)
        await self._line.send_digits(digits)
        self._actions.append(CallerAction("press", digits, began, self._now()))

    async def _speak(self, step: Step) -> None:
        pcm = await self._load_pcm(step)
        is_backchannel = step.verb == "backchannel"
        # After a backchannel no new utterance is waited for: the agent goes on with its present one.
        self._seen = len(self._earpiece.utterances) - (1 if is_backchannel else 0)
        label = _step_label(step)
        self._report({"at": self._now(), "event": "caller", "text": label, "interrupting": step.verb == "interrupt"})
        await self._microphone.speak(pcm)
        # From the first to the last frame with sound: a recording may begin and end with silence.
        started, ended = (
            at - self._answered_at for at in (self._microphone.first_voiced, self._microphone.last_voiced)
        )
        self._actions.append(CallerAction(step.verb, label, round(started, 3), round(ended, 3)))
        if not is_backchannel:
            self._spoke_at = ended

    async def _load_pcm(self, step: Step) -> bytes:
        if step.verb == "mumble":
            return mumble(float(step.value))
        return read_wav(Path(step.value)) if step.verb == "play" else await self._synthesise_words(step.value)

    async def _synthesise_words(self, text: str) -> bytes:
        assert self._voice is not None, "checked when the phone was set up"
        return await synthesise(self._voice, text)

    async def _wait_for_pause(self) -> None:
        """Wait until the agent has spoken since the caller's last action and then paused for `_TURN_PAUSE`."""
        await self._wait_until(lambda: len(self._earpiece.utterances) > self._seen, _MAX_WAIT)
        while not self._line.ended.done():
            latest = self._earpiece.utterances[-1] if self._earpiece.utterances else None
            if latest is None or (latest.ended is not None and self._now() - latest.ended >= _TURN_PAUSE):
                return
            await self._wait_for_change(0.05)

    async def _wait_for_speech(self, seconds: float) -> None:
        def has_spoken_long_enough() -> bool:
            since = self._earpiece.speaking_since
            return since is not None and len(self._earpiece.utterances) > self._seen and self._now() - since >= seconds

        await self._wait_until(has_spoken_long_enough, _MAX_WAIT)

    async def _wait_for_words(self, pattern: re.Pattern[str]) -> None:
        def is_said() -> bool:
            for heard in self._earpiece.utterances[self._matched :]:
                if heard.text and pattern.search(heard.text):
                    self._matched = heard.number
                    return True
            return False

        is_heard = await self._wait_until(is_said, _MAX_WAIT)
        if not is_heard and self._line.ended.done():
            # The agent's last words may be recognised only after the call.
            self._earpiece.close()
            deadline = self._clock() + _LAST_WORDS
            while self._earpiece.recognising and self._clock() < deadline:
                await self._wait_for_change(0.05)
            is_heard = is_said()
        if not is_heard:
            self._not_heard.append(pattern.pattern)
            self._report({"at": self._now(), "event": "not heard", "text": pattern.pattern})

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for `condition`, the end of the call or `seconds`; return whether the condition was met."""
        # The condition is also checked 20 times a second, because the mere passing of time can make it true.
        deadline = self._clock() + seconds
        while not (is_met := condition()) and not self._line.ended.done() and self._clock() < deadline:
            await self._wait_for_change(0.05)
        return is_met

    async def _wait_for_change(self, seconds: float) -> None:
        # The event may be cleared: every caller of this method has checked its condition since the last change.
        self._earpiece.changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._earpiece.changed.wait()
        except TimeoutError:
            pass

    def _now(self) -> float:
        return round(self._clock() - self._answered_at, 3)


def _step_label(step: Step) -> str:
    match step.verb:
        case "play":
            return Path(step.value).name
        case "mumble":
            return f"(mumbles for {step.value} s)"
    return step.value
