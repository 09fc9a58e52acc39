"""Builds a call's record from what happens in it. No I/O; seconds are counted from the call's beginning."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from callagent.agents import AgentRecord, FunctionEnded, FunctionStarted, MetricWritten, ModelAnswered, StepEntered
from callagent.call_info import CallInfo, EndReason, MediaStatistics
from callagent.legs import CallerHungUp, TransferOutcome, TransferTarget
from callagent.records import CallRecord, FunctionRecord, RequestRecord, Spoken, TurnEntry
from callagent.turns import (
    BargedIn,
    CallerTurnEnded,
    FloorYielded,
    NoInput,
    PartialHeard,
    PlayoutPaused,
    PlayoutResumed,
    Span,
    SpeechFailed,
    TurnEvent,
    TurnReopened,
    TurnTimings,
    Utterance,
    UtteranceFinished,
    UtteranceKind,
    UtteranceStarted,
)

_HIDDEN = "[hidden]"
_CHANNELS = {
    "sip": "VOICE-SIP",
    "twilio": "VOICE-TWILIO",
    "browser": "VOICE-WEB",
    "session": "VOICE-API",
    "text": "CHAT",
}


class Recorder:
    """`began` is the monotonic second that corresponds to `info.started`."""

    def __init__(self, info: CallInfo, project: str, environment: str, began: float) -> None:
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
        self._instants: list[tuple[TurnEntry, TurnTimings]] = []
        self._utterances: dict[int, tuple[TurnEntry, Spoken]] = {}
        self._made: dict[str, tuple[float, float]] = {}
        """Words of the present turn -> when the voice was asked for them, and when it began to answer."""
        self.record.turns.append(self._turn)

    def told(self, event: TurnEvent, now: float) -> None:
        """What the turn-taker tells."""
        match event:
            case CallerTurnEnded(text=text, digits=digits, is_pii=hidden, record=record):
                self.caller_turn(record, text, digits, hidden=hidden, now=now)
            case NoInput(record=record):
                self.caller_turn(record, "", "", hidden=False, now=now)
            case BargedIn(heard_text=heard, at=at):
                self.barged_in(heard, at)
            case TurnReopened():
                self.reopened()
            case FloorYielded(heard_text=heard):
                self._turn.agent_response = heard
            case UtteranceStarted(utterance=utterance, at=at):
                self.utterance_started(utterance, at)
            case UtteranceFinished(utterance=utterance, at=at):
                self.utterance_finished(utterance, at)
            case PlayoutPaused(at=at):
                self._turn.pauses.append({"at": self._at(at), "ended_at": None, "resumed": None})
            case PlayoutResumed(at=at):
                self._close_pauses(at, resumed=True)
            case SpeechFailed(utterance=utterance, detail=detail):
                self.error("voice", f"{detail}: {utterance.text}", now)
            case PartialHeard():
                pass

    def did(self, action: StepEntered | ModelAnswered | MetricWritten, now: float) -> None:
        """What the agent tells beside what it does."""
        match action:
            case StepEntered(flow=flow, step=step):
                self._turn.flow, self._turn.step = flow, step
            case ModelAnswered():
                self._model_answered(action)
                if action.error:
                    self.error("model", action.error, now)
            case MetricWritten():
                """The store has it."""

    def answered(self, now: float) -> None:
        self.record.answered_at = self._datetime(now)

    def caller_turn(self, record: TurnTimings, text: str, digits: str, *, hidden: bool, now: float) -> None:
        """A new turn begins with what the caller did; all empty: silence."""
        self._turn = TurnEntry(
            number=len(self.record.turns),
            user_input=text,
            user_input_dtmf=_HIDDEN if digits and hidden else digits,
            user_input_datetime=self._datetime(now),
            is_silence=not text and not digits,
            flow=self._turn.flow,
            step=self._turn.step,
        )
        self.record.turns.append(self._turn)
        self._made.clear()
        self.record.num_silences += self._turn.is_silence
        self._instants.append((self._turn, record))

    def reopened(self) -> None:
        """The caller went on: the turn that was taken too early is not one of its own, unless it had effects."""
        if not self._turn.functions and not self._turn.spoken and self._turn.number:
            self.record.turns.remove(self._turn)
            self._instants = [pair for pair in self._instants if pair[0] is not self._turn]
            self._turn = self.record.turns[-1]

    def function_started(self, action: FunctionStarted, now: float) -> None:
        entry = FunctionRecord(action.number, action.name, dict(action.arguments), started_at=self._at(now))
        self._turn.functions.append(entry)
        if self._instants:
            self._instants[-1][1].functions.append(Span(action.name, now))

    def function_ended(self, action: FunctionEnded, now: float) -> None:
        for entry in self._functions():
            if entry.number == action.number:
                entry.result = action.result
                entry.error = action.error
                entry.duration_ms = action.duration_ms
                entry.logs = [dict(line) for line in action.logs]
                entry.state_changes = dict(action.state_changes)
                entry.transition = dict(action.transition) if action.transition else None
        for span in self._instants[-1][1].functions if self._instants else ():
            if span.name == action.name and span.ended is None:
                span.ended = now

    def _model_answered(self, action: ModelAnswered) -> None:
        if self._instants:
            self._instants[-1][1].first_token = action.first_token
        turn = self._turn
        kept = ("name",) if turn.user_input_dtmf == _HIDDEN else ("name", "arguments")
        turn.requests.append(
            RequestRecord(
                turn.flow,
                turn.step,
                self._at(action.requested),
                round((action.finished - action.requested) * 1000, 1),
                action.input_tokens,
                action.output_tokens,
                [{key: call[key] for key in kept} for call in action.calls],
                action.error,
                None if action.first_token is None else self._at(action.first_token),
            )
        )

    def speech_made(self, text: str, asked: float, answered: float) -> None:
        """The voice began to answer; what it was for is known when it is heard."""
        self._made[text] = (asked, answered)

    def provider_failed(self, role: str, provider: str, error: str, now: float) -> None:
        failure = {"role": role, "provider": provider, "error": error, "at": self._at(now)}
        self.record.provider_failures.append(failure)

    def utterance_started(self, utterance: Utterance, at: float) -> None:
        kind = "filler" if utterance.kind is UtteranceKind.FILLER else "speech"
        instants = self._instants[-1][1] if self._instants else None
        if kind == "speech" and instants is not None and instants.voice_asked is None:
            instants.voice_asked, instants.voice_answered = self._made.get(utterance.text, (None, None))
        spoken = Spoken(utterance.text, kind, self._at(at))
        self._turn.spoken.append(spoken)
        self._turn.agent_response_datetime = self._turn.agent_response_datetime or self._datetime(at)
        self._utterances[utterance.number] = (self._turn, spoken)
        self._measure()

    def utterance_finished(self, utterance: Utterance, at: float) -> None:
        if pair := self._utterances.pop(utterance.number, None):
            pair[1].ended_at = self._at(at)
            pair[1].heard = pair[1].text

    def barged_in(self, heard: str, at: float) -> None:
        self._turn.barge_in = True
        self._turn.agent_response = heard
        self._close_pauses(at, resumed=False)
        for _, spoken in self._utterances.values():
            whole = " ".join(one.heard for one in self._turn.spoken if one.kind == "speech" and one.heard)
            spoken.ended_at = self._at(at)
            spoken.interrupted = True
            spoken.heard = heard.removeprefix(whole).strip() if spoken.kind == "speech" else spoken.text
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
        """What the peer said as it left."""
        self.record.hang_up_headers = dict(event.headers)
        self.record.hang_up_causes = list(event.causes)

    def finish(self, reason: EndReason, now: float) -> None:
        """The call is over; the agent's part and the media's follow."""
        record = self.record
        record.in_progress = False
        record.end_reason = reason.value
        record.total_duration = self._at(now)
        record.ended_at = self._datetime(now)
        record.num_turns = len(record.turns) - 1
        self._measure()
        for turn in record.turns:
            # After the last words before a hang-up or a transfer the caller does not get the floor.
            if not turn.agent_response and not turn.barge_in:
                turn.agent_response = " ".join(one.heard for one in turn.spoken if one.kind == "speech" and one.heard)

    def agent(self, agent: AgentRecord) -> None:
        record = self.record
        record.state, record.metrics, record.entities = agent.state, agent.metrics, agent.entities
        record.flow, record.step = agent.flow, agent.step
        record.messages = agent.messages
        for reached in agent.limits_reached:
            self.record.limits_reached.append(
                {"limit": reached.limit, "detail": reached.detail, "at": record.total_duration}
            )
        record.variant_name, record.language = agent.variant, agent.language

    def signalling(self, messages: list[dict[str, Any]]) -> None:
        self.record.signalling = messages

    def media(self, statistics: MediaStatistics) -> None:
        self.record.media = asdict(statistics)

    def _measure(self) -> None:
        for entry, instants in self._instants:
            entry.instants = self._instants_of(instants)
            entry.latency = _latency_of(instants)

    def _functions(self) -> list[FunctionRecord]:
        return [entry for turn in self.record.turns for entry in turn.functions]

    def _close_pauses(self, at: float, *, resumed: bool) -> None:
        for pause in self._turn.pauses:
            if pause["ended_at"] is None:
                pause.update(ended_at=self._at(at), resumed=resumed)

    def _instants_of(self, instants: TurnTimings) -> dict[str, float | None]:
        names = (
            *("speech_started", "speech_ended", "transcript_ready", "turn_ended", "first_token"),
            *("voice_asked", "voice_answered"),
            *("first_audio", "playout_ended", "interruption_started", "interrupted_at"),
        )
        return {name: self._at(value) if (value := getattr(instants, name)) is not None else None for name in names}

    def _at(self, now: float) -> float:
        return round(now - self._began, 3)

    def _datetime(self, now: float) -> str:
        return _iso(self._started + timedelta(seconds=now - self._began))


def _latency_of(instants: TurnTimings) -> dict[str, float | None]:
    stages: dict[str, Any] = {
        "response": instants.response_delay,
        "endpointing": instants.endpointing_delay,
        "transcription": instants.transcription_delay,
        "token": instants.token_delay,
        "functions": instants.functions_delay,
        "voice": instants.voice_delay,
        "wire": instants.wire_delay,
        "barge_in": instants.barge_in_reaction,
    }
    return {name: round(value, 3) if value is not None else None for name, value in stages.items()}


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
