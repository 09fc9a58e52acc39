"""One call, from ringing to its record: a leg, a turn manager and an agent, joined by one inbox.

Everything that happens arrives in `Call._inbox` and is handled by one `match`, one event after another, so the parts of
a call need no locks. What takes time (a reply of the agent, a transfer, the last words before a hang-up) is a task of
the call that ends by putting its result into the inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from callagent import legs
from callagent.agents import AgentProject, Handoff, HandoffFailed, HangUp, Listen, Say
from callagent.call import state as call_state
from callagent.call.actions import AgentActions
from callagent.call.conversation import Conversation, MediaTimeout
from callagent.call.recorder import Persistence, Recorder
from callagent.call.recording_tap import AudioTap, RecordingTap
from callagent.call.transfer import Transfer
from callagent.call_info import EndReason, RecordingWish
from callagent.failover import ON_PROVIDER_FAILURE
from callagent.log import get_logger
from callagent.models import TOKEN_BUDGET, TokenBudget
from callagent.records import CallRecord
from callagent.turns import CallerTurnEnded, FloorState, TurnEvent, TurnManager

log = get_logger(__name__)

_OpeningEvents = list[call_state.ActionEmitted | call_state.ReplyEnded]


class Call:
    """One call. `run` returns its record at its end, after it has closed whatever the call opened."""

    def __init__(
        self,
        leg: legs.CallLeg,
        project: AgentProject,
        make_turn_manager: Callable[[Callable[[call_state.Event], None]], TurnManager],
        services: call_state.CallServices,
        settings: call_state.CallSettings,
    ) -> None:
        self.leg = leg
        self._project = project
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[call_state.Event] = asyncio.Queue()
        self._turns = make_turn_manager(self._inbox.put_nowait)
        self._end_reason = EndReason.ERROR
        self._media: legs.SwitchedMedia | None = None
        self._signalling = services.signalling
        self._log = log.bind(call=leg.info.call_id)
        recorder = Recorder(leg.info, project.name, settings.environment, self._loop.time())
        self._recorder = recorder
        self._tap = RecordingTap(settings.recordings, recorder, self._log)
        self._actions = AgentActions(leg, self._turns, recorder, self._tap, services.has_voice, settings.language)
        self._transfer = Transfer(
            leg, services.resolve_target, recorder, self._inbox.put_nowait, self._log, settings.transfers
        )
        self._media_timeout = MediaTimeout(leg)
        self._machine = call_state.CallMachine(self._log, self._media_timeout.state_changed)
        self._conversation = Conversation(
            self._machine, self._actions, self._transfer, recorder, settings, self._inbox.put_nowait
        )
        self._persistence = Persistence(services.store, recorder, settings, self._log)

    # What others may see and ask for ----------------------------------------------------------------------------------

    @property
    def state(self) -> call_state.CallState:
        return self._machine.state

    @property
    def record(self) -> CallRecord:
        """The record so far."""
        return self._recorder.record

    @property
    def floor(self) -> FloorState:
        return self._turns.state

    @property
    def partial(self) -> str:
        """What the caller is saying now, as far as it is transcribed."""
        return self._conversation.partial

    def end(self, reason: EndReason) -> None:
        """Ask the call to end now, because its time is up or the server stops."""
        self._inbox.put_nowait(call_state.EndRequested(reason))
        if self.state is call_state.CallState.STARTING and self.leg.info.direction == "outbound":
            # The call waits for the peer to answer and does not read its inbox.
            self._transfer.give_up_dialling(reason)

    def close_down(self) -> None:
        """Ask the call to end because the server stops; a caller in conversation hears a closing line first."""
        if self.state is call_state.CallState.STARTING:
            self.end(EndReason.DRAIN)
        else:
            self._inbox.put_nowait(call_state.EndRequested(EndReason.DRAIN, after_words=True))

    def take_over(self, handoff: Handoff) -> None:
        """Ask the call to stop the agent and hand the caller over as `handoff` says, if the settings allow it."""
        self._inbox.put_nowait(call_state.TakeOverRequested(handoff))

    def control_recording(self, wish: RecordingWish) -> None:
        """Pause, resume or discard the recording. Does nothing if the call is not recorded."""
        self._tap.control(wish)

    def listen_in(self) -> tuple[AudioTap, Callable[[], None]] | None:
        """Return a tap of both sides' audio and the function that removes it; None before the call is answered."""
        return self._tap.listen_in()

    # Life -------------------------------------------------------------------------------------------------------------

    async def run(self) -> CallRecord:
        info = self.leg.info
        # Tasks of the call copy this context. The callbacks do not refer to the call, so that it is freed when it ends.
        ON_PROVIDER_FAILURE.set(_record_failures(self._recorder))
        TOKEN_BUDGET.set(TokenBudget(self._settings.model_tokens, _report_refusal(self._inbox)))
        self._log.info("call_started", wire=info.wire, caller=info.caller, callee=info.callee)
        timer = self._loop.call_later(self._settings.longest_call, self.end, EndReason.MAX_DURATION)
        try:
            # The boundary of a call: whatever is raised in it ends this call and no other.
            with self._log.contain("call_failed") as boundary:
                await self._persistence.write_first_record()
                async with AsyncExitStack() as stack:
                    await self._run_to_end(stack)
                    await self._stop_tasks()
            if boundary.error is not None:
                self._recorder.error("call", repr(boundary.error), self._loop.time())
        finally:
            timer.cancel()
            await self._close()
        return self._recorder.record

    async def _run_to_end(self, stack: AsyncExitStack) -> None:
        # The leg is listened to before it rings, so that a caller who gives up at once is noticed.
        self.leg.listen(self._inbox.put_nowait)
        self.leg.ring()
        conversation = self._conversation
        try:
            conversation.agent = await self._project.open(self.leg.info, self._persistence.write_metric)
        except Exception as error:
            # The boundary of a project: whatever kept it from opening, the caller goes to the fallback if there is one.
            if not conversation.fallback.end_at_target():
                raise
            self._recorder.error("agent", str(error), self._loop.time())
        await stack.enter_async_context(self._turns)
        opening: _OpeningEvents = []
        if conversation.agent is not None:
            conversation.replies.start(conversation.agent.start)
            timer = self._loop.call_later(self._settings.answer_after, self._inbox.put_nowait, call_state.AnswerDue())
            try:
                opening = await _run_start_function(self._inbox, self._handle, lambda: self._over)
            finally:
                timer.cancel()
        if self._over or not await self._answer(opening):
            return
        # Providers may have failed while the phone rang.
        conversation.fall_back()
        # A start function that was not done when the phone was answered must not leave the caller in silence.
        if conversation.agent is not None:
            conversation.say_fillers_until_answer()
        for event in opening:
            self._handle(event)
        while not self._over:
            self._handle(await self._inbox.get())

    async def _answer(self, opening: _OpeningEvents) -> bool:
        """Answer the call and start its media, unless the start function hangs up; return whether it is answered."""
        last = opening[-1] if opening else None
        if isinstance(last, call_state.ActionEmitted) and isinstance(last.action, HangUp):
            self._end(last.action.reason)
            return False
        try:
            media = await self.leg.answer()
        except legs.LegGone:
            # The reason is in the inbox, unless the leg was gone before it could say so.
            while not self._over and not self._inbox.empty():
                self._handle(self._inbox.get_nowait())
            self._end(EndReason.CANCELLED)
            return False
        self._recorder.answered(self._loop.time())
        agent = self._conversation.agent
        place = agent.record().recording if agent is not None else ""
        self._media = legs.SwitchedMedia(self._tap.attach(media, self._loop.time(), place))
        self._turns.start(self._media)
        self._machine.apply(call_state.CallInput.ANSWERED)
        # The record now has the answer and the effects of the start function, which survive a kill of the server.
        self._persistence.write_progress(agent)
        return True

    # Events -----------------------------------------------------------------------------------------------------------

    def _handle(self, event: call_state.Event) -> None:
        conversation = self._conversation
        match event:
            case call_state.ActionEmitted(number=number, action=action):
                conversation.act(number, action)
            case call_state.ReplyEnded():
                if not self._over:
                    self._persistence.write_progress(conversation.agent)
                conversation.reply_ended(event)
            case legs.CallerHungUp() | legs.LegFailed():
                self._leg_ended(event)
            case call_state.EndRequested():
                self._end_requested(event)
            case legs.DigitPressed(digit=digit):
                self._recorder.digit(digit, self._loop.time(), hidden=self._actions.digits_hidden)
                self._turns.on_digit(digit)
            case legs.WordsWritten(text=text):
                self._turns.write(text)
            case call_state.LastWordsPlayed(leaving=leaving):
                self._leave(leaving)
            case call_state.TransferEnded():
                self._transfer_ended(event)
            case legs.PartiesJoined():
                self._machine.apply(call_state.CallInput.JOINED)
                self._transfer.record_joined()
            case call_state.TakeOverRequested(handoff=handoff):
                self._take_over(handoff)
            case call_state.ProvidersFailed(role=role):
                conversation.providers_failed(role)
            case call_state.TokensRefused(detail=detail):
                self._log.warning("limit_reached", limit="model_tokens")
                conversation.tokens_refused(detail)
            case call_state.SpeechMade(text=text, asked=asked, answered=answered):
                self._recorder.speech_made(text, asked, answered)
            case call_state.AnswerDue():
                """The call was answered before."""
            case _:
                self._turn_event(event)

    def _turn_event(self, event: TurnEvent) -> None:
        # The event is recorded before whatever it leads to.
        self._recorder.turn_event(event, self._loop.time())
        self._media_timeout.turn_event(event)
        if isinstance(event, CallerTurnEnded):
            # Written before the reply, which may take long: this record remains if the server is killed meanwhile.
            self._persistence.write_progress(self._conversation.agent)
        self._conversation.turn_event(event)

    def _leg_ended(self, event: legs.CallerHungUp | legs.LegFailed) -> None:
        reason = event.reason
        if isinstance(event, legs.CallerHungUp):
            self._recorder.hung_up(event)
            detail = ", ".join(event.causes) or "hung up"
            reason = EndReason.HANDOFF if self.state is call_state.CallState.BRIDGED else reason
        else:
            detail = event.detail
            self._recorder.error("leg", detail, self._loop.time())
        if self.state is call_state.CallState.TRANSFERRING:
            self._transfer.record_caller_left(detail)
        self._end(reason)

    def _end_requested(self, event: call_state.EndRequested) -> None:
        """End the call, after the closing line if that was asked for; a leaving agent's last words replace the line."""
        if event.after_words and self.state is call_state.CallState.TALKING:
            self._conversation.say_goodbye(event.reason)
        elif not event.after_words or self.state is not call_state.CallState.LEAVING:
            self._end(event.reason)

    # Leaving ----------------------------------------------------------------------------------------------------------

    def _take_over(self, handoff: Handoff) -> None:
        """Transfer at once, without last words: whoever takes over is waiting."""
        if self.state is call_state.CallState.TALKING:
            self._conversation.replies.cut()
            self._machine.apply(call_state.CallInput.LEAVE)
            self._leave(handoff)

    def _leave(self, leaving: HangUp | Handoff) -> None:
        # The call may have ended while the last words were played.
        if self.state is not call_state.CallState.LEAVING:
            return
        if isinstance(leaving, HangUp):
            self._end(leaving.reason)
        elif (refused := self._transfer.begin(leaving, self._media)) is not None:
            self._transferred(leaving, refused)
        else:
            self._machine.apply(call_state.CallInput.TRANSFER)

    def _transfer_ended(self, event: call_state.TransferEnded) -> None:
        # The success of a bridge was recorded when the parties were joined.
        if self.state is not call_state.CallState.BRIDGED or event.outcome.status is not legs.TransferStatus.SUCCEEDED:
            self._recorder.transfer(event.target, event.outcome, self._loop.time())
        self._transferred(event.handoff, event.outcome)

    def _transferred(self, handoff: Handoff, outcome: legs.TransferOutcome) -> None:
        match self._transfer.conclude(handoff, outcome, last=handoff is self._conversation.fallback.ending):
            case EndReason() as reason:
                self._end(reason)
            case HandoffFailed() as failed:
                self._machine.apply(call_state.CallInput.TRANSFER_FAILED)
                self._conversation.transfer_failed(failed)

    # The end ----------------------------------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        return self.state is call_state.CallState.ENDED

    def _end(self, reason: EndReason) -> None:
        """End the call; the first reason stands."""
        if not self._over:
            self._end_reason = reason
            self._machine.apply(call_state.CallInput.END)

    async def _stop_tasks(self) -> None:
        # The reply stops first, because it gives work to the other two.
        for part in (self._conversation.replies, self._actions, self._transfer):
            await part.stop(self._settings.closing_timeout)

    async def _close(self) -> None:
        """End the leg, run the end function and keep the record.

        Each step is bounded in time and its exceptions are contained, so the next step is done in any case.
        """
        self._machine.state = call_state.CallState.ENDED
        agent = self._conversation.agent
        persistence, closing = self._persistence, self._settings.closing_timeout
        # Media statistics are read while the leg has them. Then the leg ends, so that no caller waits for the rest.
        persistence.run_contained("media", self._record_media)
        await persistence.run_bounded("hang_up", closing, self.leg.hang_up, self._end_reason)
        # A reply that still ran could change the state that the end function is about to see.
        await persistence.run_bounded("tasks", 4 * closing, self._stop_tasks)
        persistence.run_contained("signalling", self._record_signalling)
        # The end is recorded before the end function, whose time is not part of the call.
        self._recorder.finish(self._end_reason, self._loop.time())
        if agent:
            await persistence.run_end_function(agent, self._end_reason)
            persistence.record_agent(agent)
            await persistence.run_bounded("agent_close", closing, agent.close)
        await persistence.run_bounded("recording", closing, self._tap.close)
        await persistence.write_final_record()

    def _record_signalling(self) -> None:
        self._recorder.signalling(self._signalling(self.leg.info.peer_call_id or ""))

    def _record_media(self) -> None:
        self._recorder.record.underruns = self._turns.underruns
        if self._media:
            self._recorder.media(self._media.statistics())


async def _run_start_function(
    inbox: asyncio.Queue[call_state.Event], handle: Callable[[call_state.Event], None], over: Callable[[], bool]
) -> _OpeningEvents:
    """Let the phone ring until the start function is done or has had its time, and return what it did.

    Its actions are for an answered call and are held back; all other events are handled meanwhile.
    """
    opening: _OpeningEvents = []
    while not over():
        event = await inbox.get()
        if isinstance(event, call_state.ActionEmitted | call_state.ReplyEnded):
            opening.append(event)
            if isinstance(event, call_state.ReplyEnded) or isinstance(event.action, Say | Listen | HangUp | Handoff):
                break
        elif isinstance(event, call_state.AnswerDue):
            break
        else:
            handle(event)
    return opening


def _record_failures(recorder: Recorder) -> Callable[[str, str, str], None]:
    """Return a callback that records a provider's failure."""
    loop = asyncio.get_running_loop()
    return lambda role, provider, error: recorder.provider_failed(role, provider, error, loop.time())


def _report_refusal(inbox: asyncio.Queue[call_state.Event]) -> Callable[[str], None]:
    """Return a callback that tells a call that its tokens are used up."""
    return lambda detail: inbox.put_nowait(call_state.TokensRefused(detail))
