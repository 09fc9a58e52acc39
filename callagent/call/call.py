"""One call: a leg, a turn-taker and an agent, joined by one inbox, from ringing to the record.

Everything that happens arrives in `Call._inbox` and is handled by one `match`. What takes time (a reply of the agent, a
transfer, the last words before a hang-up) is a task of the call that ends by putting its result there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from callagent.agents import (
    Action,
    Agent,
    AgentProject,
    CallerTurn,
    Handoff,
    HandoffFailed,
    HangUp,
    ModelAnswered,
)
from callagent.call.actions import AgentActions
from callagent.call.fallback import Fallback, closing_line, last_words, word_of_patience
from callagent.call.media_timeout import MediaTimeout
from callagent.call.persistence import Persistence
from callagent.call.recorder import Recorder
from callagent.call.recording_tap import AudioTap, RecordingTap
from callagent.call.reply import Replies, opening
from callagent.call.state import (
    TRANSITIONS,
    Acted,
    AnswerDue,
    CallInput,
    CallServices,
    CallSettings,
    CallState,
    EndAsked,
    Event,
    LastWordsPlayed,
    ProvidersFailed,
    ReplyDone,
    SpeechMade,
    TakeOverAsked,
    TokensRefused,
    TransferEnded,
)
from callagent.call.transfer import Transfer
from callagent.call.voice import SpeechSettings
from callagent.call_info import EndReason, RecordingWish
from callagent.failover import ON_PROVIDER_FAILURE
from callagent.legs import (
    CallerHungUp,
    CallLeg,
    DigitPressed,
    LegFailed,
    LegGone,
    PartiesJoined,
    SwitchedMedia,
    TransferOutcome,
    TransferStatus,
    WordsWritten,
)
from callagent.log import get_logger
from callagent.records import CallRecord
from callagent.token_budget import TOKEN_BUDGET, TokenBudget
from callagent.turns import (
    BargedIn,
    CallerTurnEnded,
    FloorState,
    FloorYielded,
    NoInput,
    PartialHeard,
    TurnEvent,
    TurnManager,
    TurnReopened,
    UtteranceKind,
    UtteranceStarted,
)

log = get_logger(__name__)


class Call:
    """`run` returns the record. Whatever the call opened, `run` closes."""

    def __init__(
        self,
        leg: CallLeg,
        project: AgentProject,
        make_turn_manager: Callable[[Callable[[Event], None]], TurnManager],
        services: CallServices,
        settings: CallSettings,
    ) -> None:
        self.leg = leg
        self._project = project
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._taker = make_turn_manager(self._inbox.put_nowait)
        self._state = CallState.STARTING
        self._end_reason = EndReason.ERROR
        self._agent: Agent | None = None
        self._audio: SwitchedMedia | None = None
        self._replies = Replies(self._inbox.put_nowait)
        self._outages = Fallback(settings.fallback)
        self._reopened = False
        self._signalling = services.signalling
        self.partial = ""
        """What the caller says just now, for who watches."""
        self._log = log.bind(call=leg.info.call_id)
        self._recorder = Recorder(leg.info, project.name, settings.environment, self._loop.time())
        self._sounding = SpeechSettings(self._taker, services.has_voice, self._recorder, settings.language)
        self._tape = RecordingTap(settings.recordings, self._recorder, self._log)
        self._performer = AgentActions(leg, self._taker, self._recorder, self._sounding, self._tape)
        self._leaving = Transfer(
            leg, services.resolve_target, self._recorder, self._inbox.put_nowait, self._log, settings.transfers
        )
        self._silence = MediaTimeout(leg)
        self._keeping = Persistence(services.store, self._recorder, settings, self._log)

    @property
    def state(self) -> CallState:
        return self._state

    @property
    def record(self) -> CallRecord:
        """As far as it is known; for who watches."""
        return self._recorder.record

    @property
    def floor(self) -> FloorState:
        return self._taker.state

    @property
    def _over(self) -> bool:
        return self._state is CallState.ENDED

    def end(self, reason: EndReason) -> None:
        """Ask the call to end now: time is up, the server stops."""
        self._inbox.put_nowait(EndAsked(reason))
        if self._state is CallState.STARTING and self.leg.info.direction == "outbound":
            # While the peer's phone rings nobody reads the inbox.
            self._leaving.give_up_dialling(reason)

    def close_down(self) -> None:
        """Ask the call to end because the server stops, after a closing line where the agent talks with the caller."""
        if self._state is CallState.STARTING:
            self.end(EndReason.DRAIN)
        else:
            self._inbox.put_nowait(EndAsked(EndReason.DRAIN, after_words=True))

    def take_over(self, handoff: Handoff) -> None:
        """Ask the call to stop talking and to go where `handoff` says, if the settings let it."""
        self._inbox.put_nowait(TakeOverAsked(handoff))

    def control_recording(self, wish: RecordingWish) -> None:
        """Nothing happens where the call is not recorded."""
        self._tape.control(wish)

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]] | None:
        """A listener's ear, and what takes it away; None before the call is answered."""
        return self._tape.listen_in()

    async def run(self) -> CallRecord:
        info = self.leg.info
        # Tasks that the call holds have these in their contexts: neither refers to the call itself.
        ON_PROVIDER_FAILURE.set(_recorded_by(self._recorder))
        TOKEN_BUDGET.set(TokenBudget(self._settings.model_tokens, _refused_to(self._inbox)))
        self._log.info("call_started", wire=info.wire, caller=info.caller, callee=info.callee)
        timer = self._loop.call_later(self._settings.longest_call, self.end, EndReason.MAX_DURATION)
        try:
            await self._keeping.opened()
            async with AsyncExitStack() as stack:
                await self._live(stack)
                await self._stop_tasks()
        except Exception as error:
            # The edge of a call: whatever it was ends this call and no other.
            self._log.exception("call_failed")
            self._recorder.error("call", repr(error), self._loop.time())
        finally:
            timer.cancel()
            await self._close()
        return self._recorder.record

    # Life -----------------------------------------------------------------------------------------------------------

    async def _live(self, stack: AsyncExitStack) -> None:
        self.leg.listen(self._inbox.put_nowait)
        self.leg.ring()
        try:
            self._agent = await self._project.open(self.leg.info, self._keeping.metric)
        except Exception as error:
            # The edge of a project: whatever kept it from opening. Without a fallback there is nobody to answer for.
            if not self._outages.without_agent():
                raise
            self._recorder.error("agent", str(error), self._loop.time())
        await stack.enter_async_context(self._taker)
        backlog: list[Acted | ReplyDone] = []
        if self._agent is not None:
            self._replies.begin(self._agent.start())
            timer = self._loop.call_later(self._settings.answer_after, self._inbox.put_nowait, AnswerDue())
            try:
                backlog = await opening(self._inbox, self._handle, lambda: self._over)
            finally:
                timer.cancel()
        if self._over or not await self._answer(backlog):
            return
        self._fall_back()
        for acted in backlog:
            self._handle(acted)
        while not self._over:
            self._handle(await self._inbox.get())

    async def _answer(self, backlog: list[Acted | ReplyDone]) -> bool:
        """Take the call, unless the start function's first wish is to end it."""
        last = backlog[-1] if backlog else None
        if isinstance(last, Acted) and isinstance(last.action, HangUp):
            self._end(last.action.reason)
            return False
        try:
            media = await self.leg.answer()
        except LegGone:
            while not self._over and not self._inbox.empty():
                self._handle(self._inbox.get_nowait())
            self._end(EndReason.CANCELLED)
            return False
        self._recorder.answered(self._loop.time())
        place = self._agent.record().recording if self._agent is not None else ""
        self._audio = SwitchedMedia(self._tape.over(media, self._loop.time(), place))
        self._taker.start(self._audio)
        self._change(CallInput.ANSWERED)
        self._keeping.progressed(self._agent)
        return True

    # Events ---------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        now = self._loop.time()
        match event:
            case Acted(number=number, action=action):
                self._act(number, action)
            case ReplyDone(number=number, error=error):
                self._reply_done(number, error)
            case CallerHungUp(reason=reason, causes=causes):
                self._recorder.hung_up(event)
                self._lost_in_transfer(", ".join(causes) or "hung up")
                self._end(EndReason.HANDOFF if self._state is CallState.BRIDGED else reason)
            case EndAsked():
                self._end_asked(event)
            case LegFailed(reason=reason, detail=detail):
                self._recorder.error("leg", detail, now)
                self._lost_in_transfer(detail)
                self._end(reason)
            case DigitPressed(digit=digit):
                self._recorder.digit(digit, now, hidden=self._performer.digits_hidden)
                self._taker.on_digit(digit)
            case WordsWritten(text=text):
                self._taker.write(text)
            case LastWordsPlayed(leaving=leaving):
                self._leave(leaving)
            case TransferEnded(handoff=handoff, target=target, outcome=outcome):
                if self._state is not CallState.BRIDGED or outcome.status is not TransferStatus.SUCCEEDED:
                    self._recorder.transfer(target, outcome, now)
                self._transferred(handoff, outcome)
            case ProvidersFailed(role=role):
                self._recorder.error("outage", role, now)
                self._outages.failed(role)
                self._fall_back()
                if role == "recognizer":
                    # Nobody knows what was said: the agent asks again at once.
                    self._taker.stop_waiting()
            case TokensRefused(detail=detail):
                self._tokens_refused(detail)
            case SpeechMade(text=text, asked=asked, answered=answered):
                self._recorder.speech_made(text, asked, answered)
            case PartiesJoined():
                self._change(CallInput.JOINED)
                self._leaving.joined()
            case TakeOverAsked(handoff=handoff):
                self._take_over(handoff)
            case AnswerDue():
                pass
            case _:
                self._turn(event)

    def _end_asked(self, event: EndAsked) -> None:
        """End the call. With `after_words`, first say the closing line; a call that is leaving says its own already."""
        if event.after_words and self._state is CallState.TALKING:
            self._say_goodbye(event.reason)
        elif not event.after_words or self._state is not CallState.LEAVING:
            self._end(event.reason)

    def _tokens_refused(self, detail: str) -> None:
        """The call has used its model tokens: send the caller to the fallback target, or end the call."""
        self._log.warning("limit_reached", limit="model_tokens")
        self._recorder.limit_reached("model_tokens", detail, self._loop.time())
        self._outages.give_up("model_tokens")
        self._fall_back()

    def _turn(self, event: TurnEvent) -> None:
        """What the turn-taker tells."""
        self._recorder.told(event, self._loop.time())
        self._silence.turn_event(event)
        match event:
            case CallerTurnEnded(text=text, alternatives=alternatives, digits=digits):
                self._outages.worked("recognizer")
                self.partial = ""
                self._keeping.progressed(self._agent)
                reopens, self._reopened = self._reopened, False
                turn = CallerTurn(text, alternatives, digits, reopens=reopens, secure=event.is_pii)
                self._reply_to(turn)
            case NoInput():
                self._reply_to(CallerTurn())
            case BargedIn(heard_text=heard):
                self._interrupt(heard)
            case TurnReopened():
                self._reopened = True
                self._interrupt("")
            case FloorYielded(heard_text=heard):
                self._the_agent.heard(heard, cut=False)
            case UtteranceStarted(utterance=utterance) if utterance.kind is UtteranceKind.FILLER:
                self._the_agent.filler_spoken(utterance.text)
            case PartialHeard(text=text):
                self.partial = text
            case _:
                """Only the record wants it."""

    def _act(self, number: int, action: Action) -> None:
        """One action of a reply."""
        now = self._loop.time()
        if self._performer.note(action, now):
            if isinstance(action, ModelAnswered):
                self._model_answered(action)
            return
        if number != self._replies.number or self._state is not CallState.TALKING:
            return
        match action:
            case HangUp(reason=EndReason.ERROR):
                self._depart(self._outages.to_fallback("agent_failed") or action)
            case HangUp():
                self._depart(action)
            case Handoff():
                self._leaving.decided(action)
                self._depart(action)
            case _:
                self._performer.perform(action, now)

    def _model_answered(self, action: ModelAnswered) -> None:
        if action.error:
            self._outages.failed("model")
            self._fall_back()
        else:
            self._outages.worked("model")

    # The agent's replies ----------------------------------------------------------------------------------------------

    def _reply_to(self, turn: CallerTurn | HandoffFailed) -> None:
        if self._state is not CallState.TALKING:
            return
        self._fall_back()
        if self._outages.leaving is None:
            self._replies.begin(self._the_agent.reply(turn))
            if self._settings.filler_after:
                self._taker.wait_for_answer(word_of_patience(self._sounding.language, self._settings.filler_after))

    def _reply_done(self, number: int, error: str | None) -> None:
        if not self._over:
            self._keeping.progressed(self._agent)
        if error is None or number != self._replies.number:
            return
        self._recorder.error("agent", error, self._loop.time())
        if self._state is CallState.TALKING and (fallback := self._outages.to_fallback("agent_failed")):
            self._depart(fallback)
        elif self._state is CallState.TALKING:
            self._taker.say(last_words(self._sounding.language), interruptible=False)
            self._depart(HangUp(EndReason.ERROR))

    def _interrupt(self, heard: str) -> None:
        """The caller has the floor: the reply is cut and history holds what was heard of it."""
        if self._state is not CallState.TALKING:
            return
        self._replies.cut()
        self._the_agent.heard(heard, cut=True)

    # Leaving ----------------------------------------------------------------------------------------------------------

    def _depart(self, leaving: HangUp | Handoff) -> None:
        self._change(CallInput.LEAVE)
        self._leaving.after(self._performer.finished, leaving, self._settings.last_words)

    def _fall_back(self) -> None:
        """Where providers are out for too long, the agent's part is over: a few words, then the configured target."""
        leaving = self._outages.leaving
        if leaving is None or self._state is not CallState.TALKING:
            return
        self._replies.cut()
        self._taker.say(last_words(self._sounding.language), interruptible=False)
        self._depart(leaving)

    def _say_goodbye(self, reason: EndReason) -> None:
        """Whoever is speaking: the floor is taken for the server's closing line, which is heard to its end."""
        self._replies.cut()
        self._taker.seize_floor()
        self._taker.say(closing_line(self._sounding.language), interruptible=False)
        self._depart(HangUp(reason))

    def _take_over(self, handoff: Handoff) -> None:
        """No last words: whoever takes over is waiting."""
        if self._state is CallState.TALKING:
            self._replies.cut()
            self._change(CallInput.LEAVE)
            self._leave(handoff)

    def _leave(self, leaving: HangUp | Handoff) -> None:
        if self._state is not CallState.LEAVING:
            return
        if isinstance(leaving, HangUp):
            self._end(leaving.reason)
        elif (refused := self._leaving.hand_over(leaving, self._audio)) is not None:
            self._transferred(leaving, refused)
        else:
            self._change(CallInput.TRANSFER)

    def _lost_in_transfer(self, detail: str) -> None:
        """What became of a transfer under way is known: nothing, and nobody is to be told but the record."""
        if self._state is CallState.TRANSFERRING:
            self._leaving.caller_left(detail)

    def _transferred(self, handoff: Handoff, outcome: TransferOutcome) -> None:
        match self._leaving.outcome(handoff, outcome, self._outages):
            case EndReason() as reason:
                self._end(reason)
            case HandoffFailed() as failed:
                self._change(CallInput.TRANSFER_FAILED)
                if self._leaving.insists:
                    self._outages.give_up("transfers")
                self._reply_to(failed)

    # The end ----------------------------------------------------------------------------------------------------------

    def _end(self, reason: EndReason) -> None:
        """The first reason stands."""
        if not self._over:
            self._end_reason = reason
            self._change(CallInput.END)

    def _change(self, happened: CallInput) -> None:
        """The one place where the state changes."""
        if (state := TRANSITIONS.get((self._state, happened))) is not None:
            self._log.debug("call_state", old=self._state.value, new=state.value)
            self._state = state
            self._silence.state_changed(state)

    async def _stop_tasks(self) -> None:
        for running in (self._replies, self._performer, self._leaving):
            await running.stop(self._settings.closing)

    async def _close(self) -> None:
        """End the leg, run the end function, keep the record: each bounded and contained, so that all are done."""
        self._state = CallState.ENDED
        keeping, closing = self._keeping, self._settings.closing
        keeping.contained("media", self._note_media)
        await keeping.bounded("hang_up", closing, self.leg.hang_up, self._end_reason)
        await keeping.bounded("tasks", 4 * closing, self._stop_tasks)
        keeping.contained("signalling", self._note_signalling)
        self._recorder.finish(self._end_reason, self._loop.time())
        if self._agent:
            await keeping.end_function(self._agent, self._end_reason)
            keeping.contained("agent_record", self._note_agent, self._agent)
            await keeping.bounded("agent_close", closing, self._agent.close)
        await keeping.bounded("recording", closing, self._tape.close)
        await keeping.ended()

    def _note_media(self) -> None:
        self._recorder.record.underruns = self._taker.underruns
        if self._audio:
            self._recorder.media(self._audio.statistics())

    def _note_signalling(self) -> None:
        self._recorder.signalling(self._signalling(self.leg.info.peer_call_id or ""))

    def _note_agent(self, agent: Agent) -> None:
        self._recorder.agent(agent.record())

    @property
    def _the_agent(self) -> Agent:
        assert self._agent is not None, "events of the turn-taker come after the agent was opened"
        return self._agent


def _recorded_by(recorder: Recorder) -> Callable[[str, str, str], None]:
    """Return a callback that records a provider's failure."""
    loop = asyncio.get_running_loop()
    return lambda role, provider, error: recorder.provider_failed(role, provider, error, loop.time())


def _refused_to(inbox: asyncio.Queue[Event]) -> Callable[[str], None]:
    """Return a callback that tells a call that its tokens are used up."""
    return lambda detail: inbox.put_nowait(TokensRefused(detail))
