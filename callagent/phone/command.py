"""`callagent call`: set up the test phone, dial, follow the script, and print what happened."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

from callagent.config import Config
from callagent.errors import MissingExtra, UserError
from callagent.phone.caller import Caller, PhoneEvent, Report, Step, load_script, steps_from
from callagent.phone.figures import Figures, summary_of
from callagent.phone.handset import Earpiece, Microphone, read_wav
from callagent.phone.lines import Line
from callagent.records import StereoRecording
from callagent.speech import Recognizer, Voice

_STREAM_SCHEMES = ("http://", "https://", "ws://", "wss://")
LAST_WORDS_SECONDS = 30.0
"""Wait after the call for the agent's last words to be recognised, which is slow on a busy machine."""


def run_phone(config: Config, options: argparse.Namespace) -> int:
    """Make the call that the options describe and return 0. Raises `UserError`, if possible before dialling."""
    if options.script and options.dtmf:
        raise UserError("--dtmf does not go with --script: write a step `- press: ...` into the script")
    steps = load_script(options.script) if options.script else steps_from(options.say, options.play, options.dtmf)
    # Read before the call: a recording that cannot be played must not end the call halfway.
    for step in steps:
        if step.verb == "play":
            read_wav(Path(step.value))
    if not options.target.startswith((*_STREAM_SCHEMES, "sip:")):
        raise UserError(
            f"'{options.target}' cannot be called; use sip:USER@HOST:PORT or the URL of a server's voice webhook"
        )
    if options.record:
        _expect_writable(options.record)
    report = _json_report if options.json else _text_report
    return asyncio.run(_run_call(config, options, steps, report))


def _expect_writable(path: Path) -> None:
    """Raise `UserError` before the call if its recording cannot be written to `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            empty = file.tell() == 0
        if empty:
            path.unlink()
    except OSError as error:
        raise UserError(f"--record {path}: cannot be written: {error.strerror}") from None


async def _run_call(config: Config, options: argparse.Namespace, steps: Sequence[Step], report: Report) -> int:
    async with AsyncExitStack() as stack:
        recognizer, voice = await _open_engines(config, steps, stack)
        microphone = Microphone()
        earpiece = Earpiece(lambda utterance: caller.report_utterance(utterance))
        line = await stack.enter_async_context(_dial(options.target, options.caller, config))
        answered = monotonic()
        if recognizer:
            stream = await recognizer.open(earpiece.on_transcript)
            stack.callback(stream.close)
            earpiece.listen(stream, answered)
        else:
            earpiece.listen(None, answered)
        caller = Caller(line, earpiece, microphone, voice, report)
        line.on_transfer = lambda target: report(
            {"at": round(monotonic() - answered, 3), "event": "transferred", "text": target}
        )
        recording = StereoRecording(options.record, answered) if options.record else None
        _connect_handset(line, earpiece, microphone, recording)
        report({"at": 0.0, "event": "answered", "text": options.target})
        await _follow(line, caller, steps, options.seconds)
        ended = line.ended.result() if line.ended.done() else "we hung up"
        await line.hang_up()
        earpiece.close()
        await _wait_for_last_words(earpiece)
        report({"at": round(monotonic() - answered, 3), "event": "ended", "text": ended})
        if options.script:
            figures = caller.figures()
            event = {"at": round(monotonic() - answered, 3), "event": "figures", "text": _figures_line(figures)}
            report({**event, **figures.to_json()})
        if recording:
            await asyncio.to_thread(recording.close)
            report({"at": round(monotonic() - answered, 3), "event": "recording", "text": str(recording.path)})
    return 0


async def _follow(line: Line, caller: Caller, steps: Sequence[Step], seconds: float) -> None:
    """Follow the script until it is done, the call is over, or the time is up."""
    running = asyncio.create_task(caller.run(steps))
    waiting: set[asyncio.Future[None] | asyncio.Future[str]] = {running, line.ended}
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if line.ended.done() and not running.done():
        running.cancel()
    # The script has one more second to end by itself; then a waiting step is cancelled. Its errors are raised here.
    try:
        async with asyncio.timeout(1.0):
            await running
    except (asyncio.CancelledError, TimeoutError):
        pass


async def _wait_for_last_words(earpiece: Earpiece) -> None:
    """Wait until the agent's last words are recognised, at most `LAST_WORDS_SECONDS`."""
    try:
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            while earpiece.recognising:
                earpiece.changed.clear()
                await earpiece.changed.wait()
    except TimeoutError:
        pass


def _connect_handset(line: Line, earpiece: Earpiece, microphone: Microphone, recording: StereoRecording | None) -> None:
    """Join the handset to the line, with the recording in between if there is one: caller left, agent right."""
    if recording is None:
        line.media.start(earpiece.on_frame, microphone.next_frame)
        return

    def hear(pcm: bytes, now: float) -> None:
        recording.right(pcm, now)
        earpiece.on_frame(pcm, now)

    def speak() -> bytes | None:
        frame = microphone.next_frame()
        # This runs on the sending thread; the recording takes frames from both threads.
        if frame:
            recording.left(frame, monotonic())
        return frame

    line.media.start(hear, speak)


@asynccontextmanager
async def _dial(target: str, caller: str, config: Config) -> AsyncIterator[Line]:
    """Call the target, which is a SIP URI or the URL of a webhook or media stream."""
    if target.startswith(_STREAM_SCHEMES):
        from callagent.phone.lines import StreamPhone

        token = config.twilio.auth_token.get_secret_value()
        # The number called is fictional (555-01XX); the server's settings decide which agent answers it.
        async with StreamPhone.dial(target, token, caller, "+15550199") as line:
            yield line
    else:
        from callagent.phone.lines import dial_sip

        async with dial_sip(target, caller) as line:
            yield line


async def _open_engines(
    config: Config, steps: Sequence[Step], stack: AsyncExitStack
) -> tuple[Recognizer | None, Voice | None]:
    """Return recogniser and voice, None without the extra `local`. Raises `MissingExtra` if a voice is needed."""
    from callagent.speech import SpeechOptions, open_recognizer, open_voice

    speaks = any(step.verb in ("say", "interrupt", "backchannel") for step in steps)
    settings = SpeechOptions(whisper_dir=config.speech.whisper_dir)
    # The engines are loaded before the call, because loading them takes seconds that the agent would hear as silence.
    try:
        voice = await open_voice("local", settings) if speaks else None
        recognizer = await open_recognizer("local", settings)
    except MissingExtra:
        if speaks:
            raise
        return None, None
    stack.push_async_callback(recognizer.close)
    if voice:
        stack.push_async_callback(voice.close)
    return recognizer, voice


def _figures_line(figures: Figures) -> str:
    """Return the figures in one line."""
    parts = [f"{figures.turns} turns", f"{len(figures.missed_turns)} missed"]
    for seconds, what in ((figures.response_seconds, "answered after"), (figures.yield_seconds, "yielded after")):
        if seconds:
            summary = summary_of(seconds)
            parts.append(f"{what} {summary['p50']:.2f} s (at most {summary['max']:.2f})")
    parts.append(f"{figures.talk_over_seconds:.1f} s over each other")
    parts.append(f"{figures.words_heard} words heard")
    return ", ".join(parts)


def _json_report(event: PhoneEvent) -> None:
    print(json.dumps(event, ensure_ascii=False), flush=True)  # noqa: T201


def _text_report(event: PhoneEvent) -> None:
    # The text is None where there is no recogniser (extra `local`).
    text = event["text"] if event["text"] is not None else f"({event.get('seconds', 0)} s of speech)"
    note = f"   [answered after {event['response_delay']:.2f} s]" if "response_delay" in event else ""
    if event.get("interrupting"):
        note = "   [interrupting]"
    print(f"{event['at']:7.2f}  {event['event']:<12} {text}{note}", flush=True)  # noqa: T201
