"""Builds a call's record from what happens in it, and keeps it: in the store, with the end function's effects.

Times in the record are seconds since the call began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

from callagent import agents, turns
from callagent.call.state import END_FUNCTION_ATTEMPTS, CallSettings
from callagent.call_info import CallInfo, EndReason, MediaStatistics
from callagent.json_values import MutableJsonObject
from callagent.legs import CallerHungUp, TransferOutcome, TransferTarget
from callagent.log import Logger
from callagent.records import CallRecord, FunctionRecord, RecordWriter, RequestRecord, Spoken, TurnEntry

_HIDDEN = "[hidden]"
_CHANNELS = {
    "sip": "VOICE-SIP",
    "twilio": "VOICE-TWILIO",
    "browser": "VOICE-WEB",
    "session": "VOICE-API",
    "text": "CHAT",
}
"""The record's `channel`, by the wire of the call."""


class Recorder:
    """Builds the record of one call, without I/O. Times given to its methods are those of the event loop's clock."""

    def __init__(self, info: CallInfo, project: str, environment: str, began: float) -> None:
        """`began`: the time of the loop's clock that corresponds to `info.started`."""
        self._began = began
        self._started = info.started
        self.record = CallRecord(
            id=info.call_id,
            project_id=project,
            environment=environment,
            channel=_CHANNELS.get(info.wire, info.wire),
            direction=info.direction,
            wire=info.wire,
            peer_call_id=info.peer_call_id,
            from_number=info.caller,
            to_number=info.callee,
            started_at=_iso(info.started),
        )
        self._turn = TurnEntry(number=0)
        """The entry that is being filled: the caller's latest turn, or at first what the agent says before any."""
        self._timings: list[tuple[TurnEntry, turns.TurnTimings]] = []
        """Each of the caller's turns with its timings, which the turn manager goes on filling."""
        self._utterances: dict[int, Spoken] = {}
        """Utterances that are being played, by number."""
        self._voice_times: dict[str, tuple[float, float]] = {}
        """Texts of this turn, each with the times at which the voice was asked for it and delivered its first audio."""
        self.record.turns.append(self._turn)

    def turn_event(self, event: turns.TurnEvent, now: float) -> None:
        """Record an event of the turn manager."""
        match event:
            case turns.CallerTurnEnded(text=text, digits=digits, is_pii=hidden, timings=timings):
                self.begin_turn(timings, text, digits, hidden=hidden, now=now)
            case turns.NoInput(timings=timings):
                self.begin_turn(timings, "", "", hidden=False, now=now)
            case turns.BargedIn(heard_text=heard, at=at):
                self._barged_in(heard, at)
            case turns.TurnReopened():
                self._reopen_turn()
            case turns.FloorYielded(heard_text=heard):
                self._turn.agent_response = heard
            case turns.UtteranceStarted(utterance=utterance, at=at):
                self._utterance_started(utterance, at)
            case turns.UtteranceFinished(utterance=utterance, at=at):
                self._utterance_finished(utterance, at)
            case turns.PlayoutPaused(at=at):
                self._turn.pauses.append({"at": self._at(at), "ended_at": None, "resumed": None})
            case turns.PlayoutResumed(at=at):
                self._close_pauses(at, resumed=True)
            case turns.SpeechFailed(utterance=utterance, detail=detail):
                self.error("voice", f"{detail}: {utterance.text}", now)
            case turns.PartialHeard():
                pass

    def agent_event(self, action: agents.StepEntered | agents.ModelAnswered | agents.MetricWritten, now: float) -> None:
        """Record a report of the agent: a step, a model's answer or a metric."""
        match action:
            case agents.StepEntered(flow=flow, step=step):
                self._turn.flow, self._turn.step = flow, step
            case agents.ModelAnswered():
                self._model_answered(action)
                if action.error:
                    self.error("model", action.error, now)
            case agents.MetricWritten():
                """It is in the store already."""

    def answered(self, now: float) -> None:
        self.record.answered_at = self._datetime(now)

    def begin_turn(self, timings: turns.TurnTimings, text: str, digits: str, *, hidden: bool, now: float) -> None:
        """Begin an entry with what the caller said or keyed; nothing of either: the caller was silent."""
        self._turn = TurnEntry(
            number=len(self.record.turns),
            user_input=text,
            user_input_dtmf=_HIDDEN if digits and hidden else digits,
            user_input_datetime=self._datetime(now),
            is_silence=not text and not digits,
            # The agent stays where it was until it reports another step.
            flow=self._turn.flow,
            step=self._turn.step,
        )
        self.record.turns.append(self._turn)
        self._voice_times.clear()
        self.record.num_silences += self._turn.is_silence
        self._timings.append((self._turn, timings))

    def _reopen_turn(self) -> None:
        """Remove a turn that was taken too early, because the next one has its words, unless it had effects."""
        # What a function has done or the caller has heard stays in the record, as a turn of its own.
        if not self._turn.functions and not self._turn.spoken and self._turn.number:
            self.record.turns.remove(self._turn)
            self._timings = [pair for pair in self._timings if pair[0] is not self._turn]
            self._turn = self.record.turns[-1]

    def function_started(self, action: agents.FunctionStarted, now: float) -> None:
        entry = FunctionRecord(action.number, action.name, dict(action.arguments), started_at=self._at(now))
        self._turn.functions.append(entry)
        if self._timings:
            self._timings[-1][1].functions.append(turns.Span(action.name, now))

    def function_ended(self, action: agents.FunctionEnded, now: float) -> None:
        # It may have begun in an earlier turn than the present one: functions run on while the caller interrupts.
        for entry in self._functions():
            if entry.number == action.number:
                entry.result = action.result
                entry.error = action.error
                entry.duration_ms = action.duration_ms
                entry.logs = [dict(line) for line in action.logs]
                entry.state_changes = dict(action.state_changes)
                entry.transition = dict(action.transition) if action.transition else None
        for span in self._timings[-1][1].functions if self._timings else ():
            if span.name == action.name and span.ended is None:
                span.ended = now

    def _model_answered(self, action: agents.ModelAnswered) -> None:
        if self._timings:
            self._timings[-1][1].first_token = action.first_token
        turn = self._turn
        # Arguments of a turn with secret digits may hold them.
        call_keys = ("name",) if turn.user_input_dtmf == _HIDDEN else ("name", "arguments")
        turn.requests.append(
            RequestRecord(
                turn.flow,
                turn.step,
                self._at(action.requested),
                round((action.finished - action.requested) * 1000, 1),
                action.input_tokens,
                action.output_tokens,
                [{key: call[key] for key in call_keys} for call in action.calls],
                action.error,
                None if action.first_token is None else self._at(action.first_token),
            )
        )

    def speech_made(self, text: str, asked: float, answered: float) -> None:
        """Keep the times of a synthesised text; its turn is known only when it begins to be played."""
        self._voice_times[text] = (asked, answered)

    def provider_failed(self, role: str, provider: str, error: str, now: float) -> None:
        self.record.provider_failures.append({"role": role, "provider": provider, "error": error, "at": self._at(now)})

    def _utterance_started(self, utterance: turns.Utterance, at: float) -> None:
        kind = "filler" if utterance.kind is turns.UtteranceKind.FILLER else "speech"
        # A text that is said twice in a turn has the times of the second; only the first utterance takes them. A text
        # that was cached or recorded has none.
        timings = self._timings[-1][1] if self._timings else None
        if kind == "speech" and timings is not None and timings.voice_asked is None:
            timings.voice_asked, timings.voice_answered = self._voice_times.get(utterance.text, (None, None))
        spoken = Spoken(utterance.text, kind, self._at(at))
        self._turn.spoken.append(spoken)
        self._turn.agent_response_datetime = self._turn.agent_response_datetime or self._datetime(at)
        self._utterances[utterance.number] = spoken
        self._write_timings()

    def _utterance_finished(self, utterance: turns.Utterance, at: float) -> None:
        if spoken := self._utterances.pop(utterance.number, None):
            spoken.ended_at = self._at(at)
            spoken.heard = spoken.text

    def _barged_in(self, heard_text: str, at: float) -> None:
        self._turn.barge_in = True
        self._turn.agent_response = heard_text
        self._close_pauses(at, resumed=False)
        for spoken in self._utterances.values():
            # `heard_text` is of the whole turn and begins with the utterances that were played to their end.
            finished = " ".join(one.heard for one in self._turn.spoken if one.kind == "speech" and one.heard)
            spoken.ended_at = self._at(at)
            spoken.interrupted = True
            spoken.heard = heard_text.removeprefix(finished).strip() if spoken.kind == "speech" else spoken.text
        self._utterances.clear()

    def digit(self, digit: str, now: float, *, hidden: bool) -> None:
        self.record.digits.append({"digit": "•" if hidden else digit, "at": self._at(now)})

    def transfer(self, target: TransferTarget, outcome: TransferOutcome, now: float) -> None:
        self.record.transfers.append(
            {
                "target": target.name,
                "uri": target.uri,
                "method": target.method,
                "status": outcome.status.value,
                "detail": outcome.detail,
                "at": self._at(now),
            }
        )

    def handoff(self, destination: str, reason: str, outcome: str) -> None:
        self.record.handoff_destination = destination
        self.record.handoff_reason = reason
        self.record.handoff_outcome = outcome
        self.record.handoff = outcome == "succeeded"

    def error(self, what: str, detail: str, now: float) -> None:
        self.record.errors.append({"what": what, "detail": detail, "at": self._at(now)})

    def limit_reached(self, limit: str, detail: str, now: float) -> None:
        self.record.limits_reached.append({"limit": limit, "detail": detail, "at": self._at(now)})

    def hung_up(self, event: CallerHungUp) -> None:
        """Record the headers and causes with which the peer hung up."""
        self.record.hang_up_headers = dict(event.headers)
        self.record.hang_up_causes = list(event.causes)

    def finish(self, reason: EndReason, now: float) -> None:
        """Record the end of the call, without the end function's effects on the agent's state."""
        # The end function runs after this, and its time is not part of the call.
        record = self.record
        record.in_progress = False
        record.end_reason = reason.value
        record.total_duration = self._at(now)
        record.ended_at = self._datetime(now)
        record.num_turns = len(record.turns) - 1
        self._write_timings()
        for turn in record.turns:
            # A reply that ends with a hang-up or a transfer never yields the floor, which would tell what was heard.
            if not turn.agent_response and not turn.barge_in:
                turn.agent_response = " ".join(one.heard for one in turn.spoken if one.kind == "speech" and one.heard)

    def agent(self, agent: agents.AgentRecord) -> None:
        """Record the agent's state, as it is now."""
        record = self.record
        record.state, record.metrics, record.entities = agent.state, agent.metrics, agent.entities
        record.flow, record.step = agent.flow, agent.step
        record.messages = agent.messages
        for reached in agent.limits_reached:
            self.record.limits_reached.append(
                {"limit": reached.limit, "detail": reached.detail, "at": record.total_duration}
            )
        record.variant_name, record.language = agent.variant, agent.language

    def signalling(self, messages: list[MutableJsonObject]) -> None:
        self.record.signalling = messages

    def media(self, statistics: MediaStatistics) -> None:
        self.record.media = asdict(statistics)

    def _write_timings(self) -> None:
        """Write every turn's timings into its entry; those of earlier turns may have changed as well."""
        for entry, timings in self._timings:
            entry.instants = self._instants_of(timings)
            entry.latency = _latency_of(timings)

    def _functions(self) -> list[FunctionRecord]:
        return [entry for turn in self.record.turns for entry in turn.functions]

    def _close_pauses(self, at: float, *, resumed: bool) -> None:
        for pause in self._turn.pauses:
            if pause["ended_at"] is None:
                pause["ended_at"], pause["resumed"] = self._at(at), resumed

    def _instants_of(self, timings: turns.TurnTimings) -> dict[str, float | None]:
        names = (
            *("speech_started", "speech_ended", "transcript_ready", "turn_ended", "first_token"),
            *("voice_asked", "voice_answered"),
            *("first_audio", "playout_ended", "interruption_started", "interrupted_at"),
        )
        return {name: self._at(value) if (value := getattr(timings, name)) is not None else None for name in names}

    def _at(self, now: float) -> float:
        """Return seconds since the call began."""
        return round(now - self._began, 3)

    def _datetime(self, now: float) -> str:
        return _iso(self._started + timedelta(seconds=now - self._began))


def _latency_of(timings: turns.TurnTimings) -> dict[str, float | None]:
    stages = {
        "response": timings.response_delay,
        "endpointing": timings.endpointing_delay,
        "transcription": timings.transcription_delay,
        "token": timings.token_delay,
        "functions": timings.functions_delay,
        "voice": timings.voice_delay,
        "wire": timings.wire_delay,
        "barge_in": timings.barge_in_reaction,
    }
    return {name: round(value, 3) if value is not None else None for name, value in stages.items()}


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Persistence:
    """Writes one call to the store, and runs its end function.

    Every step that waits for the store or for the agent is bounded in time, and its exceptions are contained: a store
    that fails or stalls costs the record, never the caller.
    """

    def __init__(self, store: RecordWriter, recorder: Recorder, settings: CallSettings, log: Logger) -> None:
        self._store = store
        self._recorder = recorder
        self._settings = settings
        self._log = log
        self._metrics = 0
        """How many metrics were written; this number and the call's identifier are the key of each."""

    async def write_first_record(self) -> None:
        """Write the first record, so that a call is known even if the server is killed during it."""
        await self.run_bounded("record", self._settings.record_timeout, self._store.opened, self._recorder.record)

    async def write_metric(self, name: str, value: object) -> None:
        """Write a metric. It is durable on return, unless the store fails: then the project's function goes on."""
        # The store writes each number of a call once, so that an entry that comes twice, as from a spool, counts once.
        self._metrics += 1
        arguments = (self._recorder.record.id, self._metrics, name, value)
        await self.run_bounded("metric", self._settings.metric_timeout, self._store.metric, *arguments)

    def write_progress(self, agent: agents.Agent | None) -> None:
        """Have the record so far written when there is time; it is what remains if the server is killed."""
        if agent is not None:
            self.record_agent(agent)
        self.run_contained("record", self._store.progressed, self._recorder.record)

    def record_agent(self, agent: agents.Agent) -> None:
        """Put the agent's state into the record."""
        self.run_contained("agent_record", lambda: self._recorder.agent(agent.record()))

    async def run_end_function(self, agent: agents.Agent, reason: EndReason) -> None:
        """Run the end function of a call whose start function began; a second time if the first does not reach its end.

        The store is told of each attempt before it begins, so that the next server knows whether one is missing.
        """
        # "failed" until it has reached its end: this is what remains if the server is killed meanwhile.
        self._recorder.record.end_function = "failed"
        self.run_contained("record", self._write_hang_up, agent)
        for attempt in range(1, END_FUNCTION_ATTEMPTS + 1):
            attempted = (self._recorder.record.id, attempt)
            await self.run_bounded("end_attempt", self._settings.record_timeout, self._store.end_attempted, *attempted)
            done = False
            # `end` promises not to raise; an agent that breaks the promise has failed to end, as one that is too late.
            with self._log.contain("end_failed", attempt=attempt), suppress(TimeoutError):
                async with asyncio.timeout(self._settings.end_function_timeout):
                    done = await agent.end(reason, attempt, self._recorder.record.hang_up_headers)
            if done:
                self._recorder.record.end_function = "done"
                return
            self._log.warning("end_function_failed", attempt=attempt)

    def _write_hang_up(self, agent: agents.Agent) -> None:
        """Write how the call ended: if this server is killed now, the next one runs the end function from it."""
        self._recorder.agent(agent.record())
        self._store.progressed(replace(self._recorder.record, in_progress=True, ended_at=None))

    async def write_final_record(self) -> None:
        """Write the final record."""
        record = self._recorder.record
        await self.run_bounded("record", self._settings.closing_timeout, self._store.ended, record)
        self._log.info("call_ended", reason=record.end_reason, seconds=record.total_duration, turns=record.num_turns)

    # steps of a call

    async def run_bounded(
        self, what: str, seconds: float, step: Callable[..., Awaitable[object]], *arguments: object
    ) -> None:
        """Wait for `step(*arguments)`, but no longer than `seconds`. Never raises: the next step has to be done too."""
        # The boundary of a call: whatever this step meets, the steps after it still close what they own.
        with self._log.contain("step_failed", what=what):
            try:
                async with asyncio.timeout(seconds):
                    await step(*arguments)
            except TimeoutError:
                self._log.error("step_timed_out", what=what, seconds=seconds)

    def run_contained(self, what: str, step: Callable[..., object], *arguments: object) -> None:
        """Call `step(*arguments)`, which does not wait. Never raises, just as `run_bounded`."""
        with self._log.contain("step_failed", what=what):
            step(*arguments)
