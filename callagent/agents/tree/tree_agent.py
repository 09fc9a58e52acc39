"""The agent of one call that follows a tree: takes the caller's turns and emits the actions of the tree's agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from callagent.agents.actions import Action, FunctionEnded, FunctionStarted, Handoff, HangUp, Listen, Say
from callagent.agents.protocol import AgentRecord, CallerTurn, Emit, HandoffFailed
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.events import Content, Event, RunFailed, text_content
from callagent.agents.tree.nodes import LlmNode
from callagent.agents.tree.request import ModelRequest
from callagent.agents.tree.run import run_agent
from callagent.agents.tree.run_context import Ending, ProjectCode, Run, TreeSettings
from callagent.call_info import NO_HEADERS, EndReason
from callagent.json_values import MutableJsonObject
from callagent.log import get_logger
from callagent.models import LanguageModel

log = get_logger(__name__)


def _observe_nothing(request: ModelRequest) -> None:
    """Do nothing: by default nobody records the requests to the model."""


class TreeAgent:
    """The `agents.protocol.Agent` of one call whose project is an agent tree."""

    nested = False
    """`Run.nested` of the turns: whether an agent that transfers waits until the other agent has ended."""

    def __init__(
        self,
        name: str,
        conversation: Conversation,
        code: ProjectCode,
        model: LanguageModel,
        settings: TreeSettings,
        observe: Callable[[ModelRequest], None] = _observe_nothing,
    ) -> None:
        self.conversation = conversation
        self.failure: RunFailed | None = None
        """The error that the last turn failed with."""
        self._name = name
        self._code = code
        self._model = model
        self._settings = settings
        self._observe = observe
        self._turns = 0
        self._silences = 0
        self._turn_start = 0
        """Index of the first event after the caller's in the last turn."""
        self._endings: list[Ending] = []
        """How the turn is to end, as its tools decided; not empty after a turn that was interrupted."""
        self._unfinished: set[asyncio.Task[object]] = set()
        """Tasks of interrupted turns that the next turn waits for (`Run.finish_before_next_turn`)."""
        self._background: set[asyncio.Task[object]] = set()
        """Tasks that go on during the turns (`Run.run_in_background`)."""
        self._late_events: list[FunctionStarted | FunctionEnded] = []
        """Function events of an interrupted turn, emitted at the beginning of the next one."""
        self._handoff: MutableJsonObject | None = None
        self._closed = False

    async def start(self, emit: Emit) -> None:
        greeting = self._settings.greeting
        self._turn_start = 0
        if greeting:
            root = self.conversation.root
            self.conversation.append(Event(root.name, text_content("model", greeting)))
            emit(Say(greeting))
        emit(Listen())

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        self._turns += 1
        # An interrupted turn may still have project code running. Its answer changes the state that this turn starts
        # from, so it has to come first; the timeouts of project code bound the wait.
        await self._settle()
        for late_event in self._late_events:
            emit(late_event)
        self._late_events.clear()
        if isinstance(turn, CallerTurn) and turn.reopens and self._turn_start:
            self.conversation.reopen(self._turn_start - 1)
        content = self._caller_content(turn)
        if self._silences > self._settings.max_silences:
            emit(Say(self._settings.hangup_utterance))
            emit(HangUp(EndReason.SILENCE))
        elif self._has_pending_ending():
            emit(self._ending())
        else:
            await self.answer(content, emit)

    async def answer(self, content: Content, emit: Emit) -> None:
        """Run one turn on what the caller said, or on the late result of a long-running tool."""
        invocation_id = f"turn-{self._turns}"
        self.conversation.take_caller(content, invocation_id)
        self._turn_start = len(self.conversation.events)
        self.failure = None
        self._endings = []
        actions = TurnActions(emit, self._late_events)
        # The turn runs in a task of its own. An interruption cancels `answer`, which closes `actions` before it cancels
        # that task: words that agents and tools emit while they end are not spoken any more.
        running = asyncio.create_task(self._run(actions.emit, invocation_id, content, self._endings.append))
        try:
            await asyncio.wait({running})
        finally:
            actions.close()
            await self._stop(running)
        running.result()
        # A turn that neither says anything nor ends the call would leave the caller in silence.
        if self.failure is not None or not (actions.spoke or self._endings):
            emit(Say(self._settings.fallback_utterance))
        emit(self._ending())

    def heard(self, text: str, *, cut: bool) -> None:
        # Without a cut, the caller has heard all that the history has.
        if cut:
            self.conversation.correct(self._turn_start, text)

    def filler_spoken(self, text: str) -> None:
        """Do nothing: fillers are in the call's record, and the model never sees them."""

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        await self._settle()
        # Memories are kept only for projects that search them.
        if any(tool.remembers for node in self.conversation.root.walk() for tool in getattr(node, "tools", ())):
            self.conversation.storage.remember(self.conversation.events)
        return True

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        tasks = self._unfinished | self._background
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._code.close()

    def record(self) -> AgentRecord:
        return AgentRecord(
            project=self._name,
            flow=self.conversation.root.name,
            step=self.conversation.active().name,
            state=dict(self.conversation.state.values),
            handoff=self._handoff,
        )

    def _caller_content(self, turn: CallerTurn | HandoffFailed) -> Content:
        if isinstance(turn, HandoffFailed):
            self._handoff = None
            return text_content("user", f"(The transfer to {turn.destination} did not happen: {turn.reason}.)")
        digits = self.conversation.vault.put(turn.digits) if turn.secure and turn.digits else turn.digits
        text = turn.text or digits
        self._silences = 0 if text else self._silences + turn.counts_as_silence
        return text_content("user", text or self._settings.no_input_text)

    async def _run(
        self, emit: Emit, invocation_id: str, content: Content, add_ending: Callable[[Ending], None]
    ) -> None:
        conversation = self.conversation
        run = Run(
            conversation=conversation,
            code=self._code,
            model=self._model,
            settings=self._settings,
            emit=emit,
            invocation_id=invocation_id,
            user_content=content,
            observe=self._observe,
            finish_before_next_turn=lambda task: self._keep(task, self._unfinished),
            run_in_background=lambda task: self._keep(task, self._background),
            add_ending=add_ending,
            run_agent=run_agent,
            nested=self.nested,
        )
        first = conversation.active()
        try:
            await run_agent(run, first)
        except RunFailed as failure:
            self.failure = failure
            log.error("turn_failed", agent=failure.agent or first.name, kind=failure.kind, error=failure.text)
            # Recorded conversations of the ADK have a failure event in these cases only.
            if isinstance(first, LlmNode) and not failure.recorded:
                failed = Event(failure.author, invocation_id=invocation_id, error=(failure.kind, failure.text))
                conversation.append(failed)
        finally:
            conversation.state.drop_temporary()

    def _has_pending_ending(self) -> bool:
        """Return whether an interrupted turn decided on a hang-up or handoff."""
        return not all(isinstance(each, Listen) for each in self._endings)

    def _ending(self) -> Ending:
        """Return how the turn ends: the first hang-up or handoff, else the last way to listen."""
        decided, self._endings = self._endings, []
        final = [each for each in decided if not isinstance(each, Listen)]
        ending = final[0] if final else decided[-1] if decided else Listen()
        if isinstance(ending, Handoff):
            self._handoff = {"destination": ending.destination, "reason": ending.reason}
        return ending

    def _keep(self, task: asyncio.Task[object], tasks: set[asyncio.Task[object]]) -> None:
        def done(task: asyncio.Task[object]) -> None:
            tasks.discard(task)
            if not task.cancelled():
                # The task that awaited it may be cancelled: asyncio would log an exception that nobody retrieves.
                task.exception()

        tasks.add(task)
        task.add_done_callback(done)

    async def _stop(self, running: asyncio.Task[None]) -> None:
        """Cancel an interrupted turn; its unfinished project code goes on by itself."""
        if not running.done():
            running.cancel()
            await asyncio.wait({running})

    async def _settle(self) -> None:
        """Wait for the project code of interrupted turns; its timeouts bound the wait."""
        # Finished tasks remove themselves, and a task that ends may have started another one.
        while self._unfinished:
            await asyncio.wait(set(self._unfinished))


MAX_LATE_EVENTS = 200
"""Function events kept of an interrupted turn."""


class TurnActions:
    """The way of one turn's actions to the call, open until the turn has ended or is interrupted.

    Project code may go on after that: its function events are kept for the next turn, its words are dropped.
    """

    def __init__(self, emit: Emit, late_events: list[FunctionStarted | FunctionEnded]) -> None:
        """`late_events` collects the function events that come after `close()`."""
        self._emit = emit
        self._late_events = late_events
        self._closed = False
        self.spoke = False
        """Whether the turn has said anything."""

    def emit(self, action: Action) -> None:
        self.spoke = self.spoke or isinstance(action, Say)
        if not self._closed:
            self._emit(action)
        elif isinstance(action, FunctionStarted | FunctionEnded) and len(self._late_events) < MAX_LATE_EVENTS:
            self._late_events.append(action)

    def close(self) -> None:
        """Stop emitting, because the turn is over."""
        self._closed = True
