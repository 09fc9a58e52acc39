"""The agent's part in a call: its replies to the caller's turns, and how its part ends.

The agent's part ends when the agent hangs up or hands off, or when providers fail too often. The call is then
"leaving": it plays the last words, and hangs up or transfers the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from callagent import agents, turns
from callagent.call.actions import AgentActions
from callagent.call.announcements import apology, closing_line, waiting_fillers
from callagent.call.recorder import Recorder
from callagent.call.state import ActionEmitted, CallInput, CallMachine, CallSettings, CallState, ReplyEnded
from callagent.call.transfer import Transfer
from callagent.call_info import EndReason
from callagent.errors import CallagentError
from callagent.legs import CallLeg
from callagent.log import get_logger

log = get_logger(__name__)

Reply = Callable[[agents.Emit], Awaitable[None]]
"""Runs one reply of the agent, or its greeting: emits the actions of the reply and returns when it is complete."""
PROMPTED_SILENCES: Final = 3
"""Silent turns in a row during which missing media does not end the call: the agent prompts the caller after each."""
MAX_FAILURES: Final = {"recognizer": 2, "model": 2, "voice": 1}
"""How many failures of a role in a row end the agent's part. A caller who was not understood once is asked again; an
agent without a voice cannot ask."""


class Conversation:
    """Gives the caller's turns to the agent, carries out its actions, and decides when its part is over.

    `agent` is set once the project has opened it; without an agent the conversation only leads to the fallback target.
    """

    def __init__(
        self,
        machine: CallMachine,
        actions: AgentActions,
        transfer: Transfer,
        recorder: Recorder,
        settings: CallSettings,
        emit: Callable[[ActionEmitted | ReplyEnded], None],
    ) -> None:
        self._machine = machine
        self._actions = actions
        self._turns = actions.turns
        self._transfer = transfer
        self._recorder = recorder
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.replies = ReplyRunner(emit)
        self.fallback = Fallback(settings.fallback)
        self.agent: agents.Agent | None = None
        self.partial = ""
        """The partial transcript of what the caller is saying now."""
        self._reopened = False
        """The caller's next turn continues the one before, which was taken too early."""

    # What happens -----------------------------------------------------------------------------------------------------

    def turn_event(self, event: turns.TurnEvent) -> None:
        """React to an event of the turn manager."""
        match event:
            case turns.CallerTurnEnded(text=text, alternatives=alternatives, digits=digits):
                self.fallback.reset_failures("recognizer")
                self.partial = ""
                reopens, self._reopened = self._reopened, False
                self.reply_to(agents.CallerTurn(text, alternatives, digits, reopens=reopens, secure=event.is_pii))
            case turns.NoInput():
                self.reply_to(agents.CallerTurn())
            case turns.BargedIn(heard_text=heard_text):
                self._interrupt(heard_text)
            case turns.TurnReopened():
                self._reopened = True
                self._interrupt("")
            # This also happens while the call is leaving, so that the agent's history contains the last words.
            case turns.FloorYielded(heard_text=heard_text):
                self._opened_agent.heard(heard_text, cut=False)
            case turns.UtteranceStarted(utterance=utterance) if utterance.kind is turns.UtteranceKind.FILLER:
                self._opened_agent.filler_spoken(utterance.text)
            case turns.PartialHeard(text=text):
                self.partial = text
            case _:
                """Only the record wants it."""

    def act(self, number: int, action: agents.Action) -> None:
        """Carry out one action of the agent's reply `number`.

        Of an interrupted reply, only lasting actions are carried out (`perform_lasting`).
        """
        now = self._loop.time()
        if self._actions.perform_lasting(action, now):
            if isinstance(action, agents.ModelAnswered):
                self._model_answered(action)
            return
        # Actions wait in the inbox: the caller may have interrupted their reply before they were read.
        if number != self.replies.number or self._machine.state is not CallState.TALKING:
            return
        match action:
            case agents.HangUp(reason=EndReason.ERROR):
                self.leave(self.fallback.take_handoff("agent_failed") or action)
            case agents.HangUp():
                self.leave(action)
            case agents.Handoff():
                self._transfer.count_request(action)
                self.leave(action)
            case _:
                self._actions.perform(action, now)

    def reply_ended(self, event: ReplyEnded) -> None:
        """Send the caller to the fallback, or apologise and hang up, if this reply failed and no other follows."""
        # A failure of an outdated reply is ignored: the reply that followed it decides how the call goes on.
        if event.error is None or event.number != self.replies.number:
            return
        self._recorder.error("agent", event.error, self._loop.time())
        if self._machine.state is not CallState.TALKING:
            return
        target = self.fallback.take_handoff("agent_failed")
        if target is None:
            self._turns.say(apology(self._actions.language), interruptible=False)
        self.leave(target or agents.HangUp(EndReason.ERROR))

    def providers_failed(self, role: str) -> None:
        """Count a failure of all providers of a role; have the agent ask again for words that were lost with it."""
        self._recorder.error("outage", role, self._loop.time())
        self.fallback.count_failure(role)
        self.fall_back()
        if role == "recognizer":
            # What the caller said is lost. An empty turn for it has the agent ask again at once.
            self._turns.stop_waiting()

    def tokens_refused(self, detail: str) -> None:
        """Send the caller to the fallback, or end the call, because it has used all its model tokens."""
        self._recorder.limit_reached("model_tokens", detail, self._loop.time())
        self.fallback.give_up("model_tokens")
        self.fall_back()

    def _model_answered(self, action: agents.ModelAnswered) -> None:
        if action.error:
            self.fallback.count_failure("model")
            self.fall_back()
        else:
            self.fallback.reset_failures("model")

    # Replies ----------------------------------------------------------------------------------------------------------

    def reply_to(self, turn: agents.CallerTurn | agents.HandoffFailed) -> None:
        """Have the agent reply, unless its part is over."""
        if self._machine.state is not CallState.TALKING:
            return
        # Providers may have failed too often during a transfer, when `fall_back` does nothing.
        self.fall_back()
        if self.fallback.ending is None:
            self.replies.start(partial(self._opened_agent.reply, turn))
            self.say_fillers_until_answer()

    def say_fillers_until_answer(self) -> None:
        """Say words of patience, if the settings ask for them, until the agent's next words are there."""
        # The agent's own fillers come before these (`turns/fillers.py`).
        if self._settings.filler_after:
            self._turns.wait_for_answer(waiting_fillers(self._actions.language, self._settings.filler_after))

    def _interrupt(self, heard_text: str) -> None:
        """Stop the reply, because the caller has the floor; the agent's history keeps what was heard of it."""
        if self._machine.state is not CallState.TALKING:
            return
        self.replies.cut()
        self._opened_agent.heard(heard_text, cut=True)

    # Leaving ----------------------------------------------------------------------------------------------------------

    def leave(self, leaving: agents.HangUp | agents.Handoff) -> None:
        """Take no further turns, and hang up or hand off once the words said so far are played."""
        self._machine.apply(CallInput.LEAVE)
        self._transfer.play_last_words(self._actions.wait_finished, leaving, self._settings.last_words_timeout)

    def fall_back(self) -> None:
        """End the agent's part if providers have been out too often: apologise, then go where `fallback` says."""
        leaving = self.fallback.ending
        if leaving is None or self._machine.state is not CallState.TALKING:
            return
        # The reply is cut first: what it still says would be heard after the apology, or instead of it.
        self.replies.cut()
        self._turns.say(apology(self._actions.language), interruptible=False)
        self.leave(leaving)

    def say_goodbye(self, reason: EndReason) -> None:
        """Take the floor from whoever has it, say the server's closing line to its end, and hang up."""
        self.replies.cut()
        self._turns.seize_floor()
        self._turns.say(closing_line(self._actions.language), interruptible=False)
        self.leave(agents.HangUp(reason))

    def transfer_failed(self, failed: agents.HandoffFailed) -> None:
        """Let the agent go on after a transfer that came to nothing, unless it has asked for too many."""
        if self._transfer.exhausted:
            self.fallback.give_up("transfers")
        self.reply_to(failed)

    @property
    def _opened_agent(self) -> agents.Agent:
        assert self.agent is not None, "the turn manager emits events only after the agent was opened"
        return self.agent


class ReplyRunner:
    """Runs the agent's replies as tasks, one at a time, and puts each of their actions into the call's inbox.

    `number` is that of the current reply; actions of earlier ones come too late.
    """

    def __init__(self, emit: Callable[[ActionEmitted | ReplyEnded], None]) -> None:
        self.number = 0
        self._emit = emit
        self._task: asyncio.Task[None] | None = None

    def start(self, reply: Reply) -> None:
        """Cancel the previous reply if it still runs, and run this one as soon as it has ended."""
        self.number += 1
        self._task = asyncio.create_task(self._run(self.number, reply, self._task))

    def cut(self) -> None:
        """Cancel the reply; actions of it that are in the inbox already are outdated."""
        self.number += 1
        if self._task and not self._task.done():
            self._task.cancel()

    async def stop(self, seconds: float) -> None:
        """Cancel what runs and wait for it, but no longer than `seconds`."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=seconds)
        # The task's context and traceback refer to the call: without the task, the call's memory is freed at once.
        self._task = None

    async def _run(self, number: int, reply: Reply, previous: asyncio.Task[None] | None) -> None:
        # ReplyEnded is emitted exactly once, whatever happens here: without it the call would wait for the agent.
        error: str | None = None
        try:
            # Replies change the same history: two of them never run at once.
            if previous and not previous.done():
                previous.cancel()
                await asyncio.wait({previous})
            # The boundary of an agent: an unforeseen exception fails the reply, and never passes for a silent answer.
            with log.contain("reply_failed") as boundary:
                try:
                    await reply(lambda action: self._emit(ActionEmitted(number, action)))
                except CallagentError as failure:
                    log.error("reply_failed", error=str(failure))
                    error = str(failure)
            error = error if boundary.error is None else repr(boundary.error)
        except asyncio.CancelledError:
            # `cut` and `start` raise the number before they cancel. So a reply that still has the current number was
            # cancelled by something else, and no other reply follows.
            error = "the reply was cancelled" if number == self.number else None
            raise
        finally:
            self._emit(ReplyEnded(number, error))


class MediaTimeout:
    """The rule for when missing media may end a call; it informs the leg.

    Many phones send no packets while they are muted, which on the wire looks like a caller who has vanished. As long as
    the agent prompts the caller, its own limit of silent turns decides. The media timeout is for agents without such a
    limit, and for times in which nobody prompts: during a transfer or a bridge.
    """

    def __init__(self, leg: CallLeg) -> None:
        self._leg = leg
        self._silences = 0

    def state_changed(self, state: CallState) -> None:
        self._silences = 0
        self._leg.expect_media(state in (CallState.TRANSFERRING, CallState.BRIDGED))

    def turn_event(self, event: turns.TurnEvent) -> None:
        match event:
            case turns.NoInput():
                self._silences += 1
            case turns.CallerTurnEnded():
                self._silences = 0
                self._leg.expect_media(False)
            case turns.FloorYielded() if self._silences > PROMPTED_SILENCES:
                self._leg.expect_media(True)
            case _:
                """Only silent turns count."""


class Fallback:
    """The provider failures of a call, and how the agent's part ends after them: at a target or with a hang-up."""

    def __init__(self, target: str = "") -> None:
        """`target`: name of the target that callers go to; empty: the call ends."""
        self._target = target
        self._failures: dict[str, int] = {}
        """Failures in a row, by role."""
        self.ending: agents.HangUp | agents.Handoff | None = None
        """How the agent's part ends; None: it goes on. Once set, it does not change."""

    def count_failure(self, role: str) -> None:
        """Count a failure of all providers of a role."""
        self._failures[role] = self._failures.get(role, 0) + 1
        if self._failures[role] >= MAX_FAILURES[role]:
            self.give_up(f"no {role}")

    def reset_failures(self, role: str) -> None:
        """Forget the failures of a role, because it worked: only those in a row count."""
        self._failures.pop(role, None)

    def give_up(self, reason: str) -> None:
        """Decide that the agent's part ends, unless that is decided already."""
        if self.ending is None:
            self.ending = self.take_handoff(reason) or agents.HangUp(EndReason.ERROR)

    def take_handoff(self, reason: str) -> agents.Handoff | None:
        """Return a handoff to the target; None if there is no target, or if this was called before."""
        target, self._target = self._target, ""
        return agents.Handoff(target, reason, "refer") if target else None

    def end_at_target(self) -> bool:
        """Let the call end at the target, because the project could not be opened; return whether there is one."""
        self.ending = self.take_handoff("agent_failed")
        return self.ending is not None
