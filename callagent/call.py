"""One call: a leg, a turn-taker and an agent, joined by one inbox, from ringing to the record.

Everything that happens arrives in `Call._inbox` and is handled by one `match`. What takes time (a reply of the agent, a
transfer, the last words before a hang-up) is a task of the call that ends by putting its result there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from callagent.agents.action import (
    Action,
    Agent,
    AgentProject,
    CallerTurn,
    ControlRecording,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    HandoffFailed,
    HangUp,
    Listen,
    MetricWritten,
    ModelAnswered,
    Say,
    SetBackground,
    SetLanguage,
    SetThinkingSound,
    SetVoice,
    StepEntered,
    WaitEnded,
    WaitStarted,
)
from callagent.breaker import ON_PROVIDER_FAILURE
from callagent.call_info import EndReason
from callagent.call_keeping import Keeping
from callagent.call_media import AudioTap, Tape
from callagent.call_outage import Outages, last_words, patience
from callagent.call_record import Recorder
from callagent.call_reply import Replies
from callagent.call_state import (
    ANSWERING,
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
    TransferEnded,
)
from callagent.call_voice import CallVoice
from callagent.errors import CallagentError
from callagent.legs.leg import (
    CallerHungUp,
    CallLeg,
    DigitPressed,
    LegFailed,
    LegGone,
    Media,
    PartiesJoined,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
)
from callagent.legs.switched_media import SwitchedMedia
from callagent.log import get_logger
from callagent.records import CallRecord
from callagent.turns import (
    BargedIn,
    CallerTurnEnded,
    FloorState,
    FloorYielded,
    NoInput,
    PartialHeard,
    TurnEvent,
    TurnReopened,
    TurnTaker,
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
        make_taker: Callable[[Callable[[Event], None]], TurnTaker],
        services: CallServices,
        settings: CallSettings,
    ) -> None:
        self.leg = leg
        self._project = project
        self._resolve = services.resolve_target
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._taker = make_taker(self._inbox.put_nowait)
        self._state = CallState.STARTING
        self._end_reason = EndReason.ERROR
        self._agent: Agent | None = None
        self._media: Media | None = None
        self._audio: SwitchedMedia | None = None
        self._replies = Replies(self._inbox.put_nowait)
        self._leaving: asyncio.Task[None] | None = None
        self._outages = Outages(settings.fallback)
        self._handing: tuple[Handoff, TransferTarget] | None = None
        self._digits_hidden = self._reopened = False
        self._signalling = services.signalling
        self.partial = ""
        """What the caller says just now, for who watches."""
        self._log = log.bind(call=leg.info.call_id)
        self._recorder = Recorder(leg.info, project.name, settings.environment, self._loop.time())
        self._sounding = CallVoice(self._taker, services.has_voice, self._recorder, settings.language)
        self._tape = Tape(settings.recordings, self._recorder, self._log)
        self._keeping = Keeping(services.store, self._recorder, settings, self._log)

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
            self._leaving = asyncio.create_task(self.leg.hang_up(reason))

    def take_over(self, handoff: Handoff) -> None:
        """Ask the call to stop talking and to go where `handoff` says, if the settings let it."""
        self._inbox.put_nowait(TakeOverAsked(handoff))

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]] | None:
        """A listener's ear, and what takes it away; None before the call is answered."""
        return self._tape.listen_in()

    async def run(self) -> CallRecord:
        info = self.leg.info
        ON_PROVIDER_FAILURE.set(self._provider_failed)
        self._log.info("call_started", wire=info.wire, caller=info.caller, callee=info.callee)
        await self._keeping.opened()
        timer = self._loop.call_later(self._settings.longest_call, self.end, EndReason.MAX_DURATION)
        try:
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
        self._agent = await self._project.open(self.leg.info, self._keeping.metric)
        await stack.enter_async_context(self._taker)
        self._replies.begin(self._agent.start())
        backlog = await self._ring()
        if self._over or not await self._answer(backlog):
            return
        for acted in backlog:
            self._handle(acted)
        while not self._over:
            self._handle(await self._inbox.get())

    async def _ring(self) -> list[Acted | ReplyDone]:
        """Until the start function is done or has had its time; what the agent did meanwhile."""
        backlog: list[Acted | ReplyDone] = []
        timer = self._loop.call_later(self._settings.answer_after, self._inbox.put_nowait, AnswerDue())
        try:
            while not self._over:
                event = await self._inbox.get()
                if isinstance(event, Acted | ReplyDone):
                    backlog.append(event)
                    if isinstance(event, ReplyDone) or isinstance(event.action, ANSWERING):
                        break
                elif isinstance(event, AnswerDue):
                    break
                else:
                    self._handle(event)
        finally:
            timer.cancel()
        return backlog

    async def _answer(self, backlog: list[Acted | ReplyDone]) -> bool:
        """Take the call, unless the start function's first wish is to end it."""
        last = backlog[-1] if backlog else None
        if isinstance(last, Acted) and isinstance(last.action, HangUp):
            self._end(last.action.reason)
            return False
        try:
            self._media = media = await self.leg.answer()
        except LegGone:
            while not self._over and not self._inbox.empty():
                self._handle(self._inbox.get_nowait())
            self._end(EndReason.CANCELLED)
            return False
        self._recorder.answered(self._loop.time())
        self._audio = SwitchedMedia(self._tape.over(media, self._loop.time()))
        self._taker.start(self._audio)
        self._change(CallInput.ANSWERED)
        return True

    def _provider_failed(self, role: str, provider: str, error: str) -> None:
        self._recorder.provider_failed(role, provider, error, self._loop.time())

    # Events ---------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        now = self._loop.time()
        match event:
            case Acted(number=number, action=action):
                self._act(number, action)
            case ReplyDone(number=number, error=error):
                self._reply_done(number, error)
            case CallerHungUp() if self._state is CallState.BRIDGED:
                self._end(EndReason.HANDOFF)
            case CallerHungUp(reason=reason) | EndAsked(reason=reason):
                self._end(reason)
            case LegFailed(reason=reason, detail=detail):
                self._recorder.error("leg", detail, now)
                self._end(reason)
            case DigitPressed(digit=digit):
                self._recorder.digit(digit, now, hidden=self._digits_hidden)
                self._taker.on_digit(digit)
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
            case SpeechMade(text=text, asked=asked, answered=answered):
                self._recorder.speech_made(text, asked, answered)
            case PartiesJoined():
                self._joined()
            case TakeOverAsked(handoff=handoff):
                self._take_over(handoff)
            case AnswerDue():
                pass
            case _:
                self._turn(event)

    def _turn(self, event: TurnEvent) -> None:
        """What the turn-taker tells."""
        self._recorder.told(event, self._loop.time())
        match event:
            case CallerTurnEnded(text=text, alternatives=alternatives, digits=digits):
                self._outages.worked("recognizer")
                self.partial = ""
                self._keeping.progressed()
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
        """One action of a reply; what only records is done even if the caller has interrupted it."""
        now = self._loop.time()
        match action:
            case FunctionEnded():
                self._recorder.function_ended(action, now)
                self._taker.function_ended(action.number)
                return
            case WaitEnded(number=wait):
                self._taker.function_ended(wait)
                return
            case StepEntered() | ModelAnswered() | MetricWritten():
                self._recorder.did(action, now)
                if isinstance(action, ModelAnswered):
                    self._model_answered(action)
                return
            case ControlRecording(wish=wish):
                self._tape.control(wish)
                return
        if number != self._replies.number or self._state is not CallState.TALKING:
            return
        match action:
            case Say():
                self._say(action)
            case FunctionStarted(number=function, latency=latency):
                self._recorder.function_started(action, now)
                self._taker.function_started(function, latency)
            case WaitStarted(number=wait, latency=latency):
                self._taker.function_started(wait, latency)
            case Listen(settings=settings):
                self._digits_hidden = settings.digits is not None and settings.digits.is_pii
                self._tape.hide_caller(self._digits_hidden)
                self._taker.listen(settings)
            case HangUp(reason=EndReason.ERROR):
                self._depart(self._outages.to_fallback("agent_failed") or action)
            case HangUp() | Handoff():
                self._depart(action)
            case SetVoice() | SetLanguage() | SetBackground() | SetThinkingSound():
                self._sounding.apply(action)

    def _model_answered(self, action: ModelAnswered) -> None:
        if action.error:
            self._outages.failed("model")
            self._fall_back()
        else:
            self._outages.worked("model")

    def _say(self, said: Say) -> None:
        if said.channel == "dtmf":
            self._leaving = asyncio.create_task(self.leg.send_digits(said.text))
        elif said.text.strip():
            self._taker.say(said.text, interruptible=said.interruptible, pcm=said.pcm)

    # The agent's replies ----------------------------------------------------------------------------------------------

    def _reply_to(self, turn: CallerTurn | HandoffFailed) -> None:
        if self._state is not CallState.TALKING:
            return
        self._fall_back()
        if self._outages.leaving is None:
            self._replies.begin(self._the_agent.reply(turn))
            if self._settings.asks_to_wait:
                self._taker.function_started(0, patience(self._sounding.language))

    def _reply_done(self, number: int, error: str | None) -> None:
        if error is None or number != self._replies.number:
            return
        self._recorder.error("agent", error, self._loop.time())
        if self._state is CallState.TALKING and (fallback := self._outages.to_fallback("agent_failed")):
            self._depart(fallback)
        elif self._state is CallState.TALKING:
            self._end(EndReason.ERROR)

    def _interrupt(self, heard: str) -> None:
        """The caller has the floor: the reply is cut and history holds what was heard of it."""
        if self._state is not CallState.TALKING:
            return
        self._replies.cut()
        self._the_agent.heard(heard, cut=True)

    # Leaving ----------------------------------------------------------------------------------------------------------

    def _depart(self, leaving: HangUp | Handoff) -> None:
        self._change(CallInput.LEAVE)
        self._leaving = asyncio.create_task(self._last_words(leaving))

    def _fall_back(self) -> None:
        """Where providers are out for too long, the agent's part is over: a few words, then the configured target."""
        leaving = self._outages.leaving
        if leaving is None or self._state is not CallState.TALKING:
            return
        self._replies.cut()
        self._taker.say(last_words(self._sounding.language), interruptible=False)
        self._depart(leaving)

    async def _last_words(self, leaving: HangUp | Handoff) -> None:
        try:
            async with asyncio.timeout(self._settings.last_words):
                await self._taker.played_out()
        except TimeoutError:
            self._log.warning("last_words_not_played")
        self._inbox.put_nowait(LastWordsPlayed(leaving))

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
            return
        try:
            target = self._resolve(leaving)
        except CallagentError as refusal:
            self._recorder.error("handoff", str(refusal), self._loop.time())
            self._transferred(leaving, TransferOutcome(TransferStatus.REFUSED, str(refusal)))
            return
        self._change(CallInput.TRANSFER)
        self._handing = (leaving, target)
        self._leaving = asyncio.create_task(self._transfer(leaving, target))

    async def _transfer(self, handoff: Handoff, target: TransferTarget) -> None:
        outcome = await self.leg.transfer(target, self._audio)
        self._inbox.put_nowait(TransferEnded(handoff, target, outcome))

    def _joined(self) -> None:
        """A bridge stands. What it came to is known now, whoever hangs up."""
        assert self._handing is not None, "only a transfer joins"
        handoff, target = self._handing
        self._change(CallInput.JOINED)
        self._recorder.transfer(target, TransferOutcome(TransferStatus.SUCCEEDED, "joined"), self._loop.time())
        self._recorder.handoff(handoff.destination, handoff.reason, TransferStatus.SUCCEEDED.value)

    def _transferred(self, handoff: Handoff, outcome: TransferOutcome) -> None:
        self._recorder.handoff(handoff.destination, handoff.reason, outcome.status.value)
        if outcome.status is TransferStatus.SUCCEEDED:
            self._end(EndReason.HANDOFF)
        elif outcome.status is TransferStatus.CALLER_GONE:
            self._end(EndReason.CALLER_HANGUP)
        elif handoff is self._outages.leaving:
            self._log.error("fallback_failed", target=handoff.destination, detail=outcome.detail)
            self._end(EndReason.ERROR)
        else:
            self._log.warning("handoff_failed", destination=handoff.destination, detail=outcome.detail)
            self._change(CallInput.TRANSFER_FAILED)
            self._reply_to(HandoffFailed(handoff.destination, outcome.detail))

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

    async def _stop_tasks(self) -> None:
        await self._replies.stop(self._settings.closing)
        if self._leaving and not self._leaving.done():
            self._leaving.cancel()
            await asyncio.wait({self._leaving}, timeout=self._settings.closing)

    async def _close(self) -> None:
        """End the leg, run the end function, keep the record: each bounded, each done whatever the others do."""
        self._state = CallState.ENDED
        if self._media:
            self._recorder.media(self._media.statistics())
        self._recorder.record.underruns = self._taker.underruns
        keeping, closing = self._keeping, self._settings.closing
        await keeping.bounded("hang_up", self.leg.hang_up(self._end_reason), closing)
        await self._stop_tasks()
        self._recorder.signalling(self._signalling(self.leg.info.peer_call_id or ""))
        self._recorder.finish(self._end_reason, self._loop.time())
        if self._agent:
            await keeping.end_function(self._agent, self._end_reason)
            self._recorder.agent(self._agent.record())
            await keeping.bounded("agent_close", self._agent.close(), closing)
        await keeping.bounded("recording", self._tape.close(), closing)
        await keeping.ended()

    @property
    def _the_agent(self) -> Agent:
        assert self._agent is not None, "events of the turn-taker come after the agent was opened"
        return self._agent
