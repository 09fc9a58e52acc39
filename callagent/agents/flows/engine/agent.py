"""The agent of one call that follows a flow project."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from callagent.agents.actions import HangUp, LimitReached, Say
from callagent.agents.flows.engine.decision import Decision, Position
from callagent.agents.flows.engine.function_calls import FunctionCalls, send_messages
from callagent.agents.flows.engine.listening import is_hidden_when_reopened, is_interruptible
from callagent.agents.flows.engine.memory import WRITE_SECONDS, CallerMemory
from callagent.agents.flows.engine.prompt import Prompt
from callagent.agents.flows.engine.retrieval import TopicIndex, retrieve
from callagent.agents.flows.engine.turn import Turn
from callagent.agents.flows.format import correct, opening_background
from callagent.agents.protocol import AgentRecord, CallerTurn, Emit, HandoffFailed
from callagent.call_info import NO_HEADERS, EndReason
from callagent.json_values import MutableJsonObject
from callagent.log import get_logger
from callagent.models import LanguageModel

log = get_logger(__name__)
DEFAULT_HANGUP_UTTERANCE = "Thank you for calling. Have a great day! Goodbye."


class FlowAgent:
    """The agent of one call; implements `agents.protocol.Agent`."""

    def __init__(self, functions: FunctionCalls, model: LanguageModel, index: TopicIndex, memory: CallerMemory) -> None:
        self._functions = functions
        self._model = model
        self._index = index
        self._memory = memory
        self._conversation = functions.conversation
        self._start_listens = False
        """The start function returned `listen`: the first silent turn does not count as the caller's silence."""
        self._ended = False
        """The end function has finished; a second `end()`, after a delivery that took too long, skips it."""
        self._closed = False

    async def start(self, emit: Emit) -> None:
        conversation = self._conversation
        await self._functions.runner.set_state(self._initial_state())
        decision = Decision()
        function = conversation.project.start_function
        if function is not None:
            decision = await self._functions.call(function, {}, emit, timeout=conversation.settings.start_timeout)
        project = conversation.project
        sound = opening_background(project.voice.background, project.experimental)
        if sound is not None and conversation.channel == "voice":
            # Inserted first, so that a track that the start function set comes later and wins.
            conversation.events.insert(0, sound)
        conversation.emit_events(emit)
        if decision.utterance is None and not decision.ends_call:
            for text in self._opening_texts():
                self._say(text, emit)
            # The start function said nothing, so the greeting was said in its place. An empty utterance gives the
            # caller the floor; None would ask the model.
            decision = replace(decision, utterance="", content="")
        # Such a start function waits for digits or words without asking for them, so silence is no missing answer.
        self._start_listens = decision.listen is not None
        await Turn(self._functions, self._model, emit).carry_out(replace(decision, end_turn=True))
        send_messages(conversation)

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        conversation, functions = self._conversation, self._functions
        conversation.turns += 1
        # Noted before anything else is awaited, so that an interruption does not lose the caller's words.
        await self._note_turn(turn)
        if functions.running is not None or functions.handoff_metrics is not None:
            await functions.wait_for_running()
        conversation.emit_events(emit)
        agent_turn = Turn(functions, self._model, emit)
        try:
            if conversation.unfinished is not None:
                await agent_turn.carry_out(conversation.unfinished)
            elif conversation.silences > conversation.project.experimental.max_silences:
                self._hang_up_for_silence(emit)
            else:
                await agent_turn.run()
        finally:
            # An interrupted turn, too, sends what its functions have queued.
            send_messages(conversation)

    async def restore(self, record: AgentRecord) -> None:
        """Restore an ended call from its record, so that its end function can run."""
        conversation = self._conversation
        conversation.position = Position(record.flow, record.step)
        conversation.metrics = [dict(metric) for metric in record.metrics]
        conversation.handoff = record.handoff
        if record.language:
            conversation.language = record.language
        if record.variant in conversation.project.variants.attributes:
            conversation.variant = record.variant
        await self._functions.runner.set_state({**self._initial_state(), **record.state})

    def heard(self, text: str, *, cut: bool) -> None:
        if cut:
            # Counted towards the limit of barge-ins, after which the agent cannot be interrupted. If none of the
            # agent's words were heard, the caller only went on with the same turn.
            self._conversation.interruptions += bool(text)
            self._conversation.history.cut_to_heard(text)

    def filler_spoken(self, text: str) -> None:
        """Do nothing: fillers are in the call's record, and the model never sees them."""

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        if self._ended:
            return True
        done = False
        self._conversation.end_headers = headers
        # Errors are contained here, so that the messages are sent even if the end function fails.
        with log.contain("end_function_failed", call_id=self._conversation.info.call_id, reason=reason.value):
            done = self._ended = await self._run_end_function(attempt)
            if done:
                await self._store_memory()
        await self._deliver_messages()
        return done

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        conversation = self._conversation
        # From here on nobody can send events to the call: their identifiers are forgotten.
        conversation.settings.external.forget_call(conversation.info.call_id)
        await self._deliver_messages()
        await self._functions.runner.close()

    async def _run_end_function(self, attempt: int) -> bool:
        """Run the end function; return whether it ended without an error."""
        conversation, runner = self._conversation, self._functions.runner
        await self._functions.wait_for_running()
        # The end function reads destination and reason of the handoff from `conv.state.handoff`.
        if conversation.handoff:
            await runner.set_state({"handoff": conversation.handoff})
        function = conversation.project.end_function
        if function is None:
            return True
        answer = await runner.run(function, {}, timeout=conversation.settings.end_timeout, attempt=attempt)
        # Of its effects only the messages are used, because the caller has gone.
        conversation.queue_messages(answer.effects)
        return answer.error is None

    async def _store_memory(self) -> None:
        """Store what `conv.memory` will show in the caller's next call."""
        conversation = self._conversation
        async with asyncio.timeout(WRITE_SECONDS):
            await self._memory.close(
                conversation.info,
                conversation.state,
                now=conversation.now(),
                language=conversation.language,
                handoff=conversation.handoff,
            )

    async def _deliver_messages(self) -> None:
        """Send the queued messages and wait for their outcome, which the record shows."""
        send_messages(self._conversation)
        await self._conversation.outbox.close(self._conversation.settings.delivery_timeout)

    def record(self) -> AgentRecord:
        conversation = self._conversation
        return AgentRecord(
            project=conversation.project.name,
            flow=conversation.position.flow,
            step=conversation.position.step,
            state=dict(conversation.state),
            metrics=[dict(metric) for metric in conversation.metrics],
            variant=conversation.variant,
            language=conversation.language,
            handoff=conversation.handoff,
            entities={name: result.value for name, result in conversation.entities.items()},
            messages=[dict(message) for message in conversation.outbox.sent],
            limits_reached=[event for event in conversation.events if isinstance(event, LimitReached)],
        )

    def _initial_state(self) -> MutableJsonObject:
        """Return the state keys that the platform fills in before the start function."""
        conversation = self._conversation
        info = conversation.info
        return {
            "from_": info.caller,
            "to": info.callee,
            "call_sid": info.peer_call_id or info.call_id,
            "asr_lang_code": conversation.language,
            "tts_lang_code": conversation.language,
        }

    async def _note_turn(self, turn: CallerTurn | HandoffFailed) -> None:
        """Note the caller's turn in the history, count silent turns, and look up topics."""
        conversation = self._conversation
        if isinstance(turn, HandoffFailed):
            conversation.handoff = conversation.emitted_ending = None
            # The model may have announced the transfer, so it is told that there was none.
            conversation.history.add_note(f"The transfer to {turn.destination} did not happen: {turn.reason}.")
            return
        # The caller interrupted before the call had read the last ending, so this turn repeats it.
        if conversation.emitted_ending is not None:
            conversation.unfinished, conversation.emitted_ending = conversation.emitted_ending, None
        if turn.reopens:
            conversation.history.reopen(lambda function: is_hidden_when_reopened(conversation, function))
        # The history, the model and the log see a placeholder; only functions are given the digits.
        digits = conversation.vault.put(turn.digits) if turn.secure and turn.digits else turn.digits
        corrections = conversation.project.voice.corrections
        transcript = correct(corrections, turn.text) if corrections else turn.text
        text = transcript if turn.text else digits
        silent = not text
        counts_as_silence = turn.counts_as_silence and not self._start_listens
        self._start_listens = False
        conversation.silences = (conversation.silences + counts_as_silence) if silent else 0
        conversation.alternatives = turn.alternatives
        conversation.history.add_user(text)
        if not silent:
            await retrieve(conversation, self._index, text)

    def _hang_up_for_silence(self, emit: Emit) -> None:
        conversation = self._conversation
        experimental, language = conversation.project.experimental, conversation.language
        self._say(experimental.hangup_utterance(language, DEFAULT_HANGUP_UTTERANCE), emit)
        emit(HangUp(EndReason.SILENCE))

    def _opening_texts(self) -> list[str]:
        """Return the disclaimer and the greeting, each only if it is not empty."""
        conversation = self._conversation
        project = conversation.project
        greeting = project.voice.greeting
        # A webchat begins with the greeting in `chat/`, if the project has one.
        if conversation.channel == "webchat" and project.chat is not None:
            greeting = project.chat
        disclaimer = project.experimental.disclaimer(conversation.channel_type, greeting.disclaimer)
        texts = (disclaimer, greeting.message)
        prompt = Prompt(conversation)
        return [text for text in (prompt.text(each) for each in texts) if text]

    def _say(self, text: str, emit: Emit) -> None:
        self._conversation.history.add_agent(text)
        emit(Say(text, is_interruptible(self._conversation)))
