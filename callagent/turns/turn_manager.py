"""What the call holds: a leg's media on one side, the moderator of the two voices on the other."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from callagent.agents import LatencyControl, ListenSettings
from callagent.log import get_logger
from callagent.speech.protocol import Voice, VoiceSettings
from callagent.turns.agent_speech import Sounds
from callagent.turns.caller_speech import CallerInput, CallerSpeech
from callagent.turns.events import TurnEvent
from callagent.turns.floor import FloorState
from callagent.turns.floor_control import FloorControl
from callagent.turns.playout import Utterance, UtteranceKind
from callagent.turns.settings import TurnSettings
from callagent.turns.turn_timings import TurnTimings

log = get_logger(__name__)


class WireMedia(Protocol):
    """What the turn-taker needs of an answered leg's audio."""

    def start(self, sink: Callable[[bytes, float], None], source: Callable[[], bytes | None]) -> None: ...

    def clear(self) -> float:
        """Drop what was taken and is not yet played; the seconds dropped."""

    def unheard(self) -> float:
        """Seconds taken and not yet played."""


class TurnManager:
    """One call's turn-taker. Made, used and closed on the event loop; only `next_frame` is for the pump thread."""

    def __init__(
        self,
        ears: CallerInput,
        voice: Voice,
        emit: Callable[[TurnEvent], None],
        settings: TurnSettings = TurnSettings(),  # noqa: B008
        sounds: Sounds = lambda name: None,
    ) -> None:
        self._recognizer = ears.recognizer
        self._caller = CallerSpeech(ears, settings.acknowledgements)
        self._floor_control = FloorControl(self._caller, voice, emit, settings, sounds)
        self._agent = self._floor_control.agent

    async def __aenter__(self) -> Self:
        """Open the recogniser's stream. Raises `ProviderError`."""
        if self._recognizer is not None:
            self._caller.listener.open(await self._recognizer.open(self._floor_control.take_transcript))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._floor_control.close()
        self._caller.listener.close()
        await self._agent.close()

    # the wire

    def start(self, media: WireMedia) -> None:
        """Take the audio of the answered leg. Once."""
        self._agent.unheard = media.unheard
        self._floor_control.clear_wire = media.clear
        media.start(self.on_frame, self.next_frame)

    def on_frame(self, pcm: bytes, now: float) -> None:
        """20 ms from the caller, arrived at `now`. A barge-in has silenced the playout when this returns."""
        for edge in self._caller.feed(pcm, now):
            self._floor_control.take_edge(edge)

    def next_frame(self) -> bytes | None:
        """The agent's next 20 ms; for the pump thread."""
        return self._agent.next_frame()

    def on_digit(self, digit: str) -> None:
        """The caller pressed a key."""
        self._floor_control.press(digit)

    def write(self, text: str) -> None:
        """The caller wrote: a whole turn. It interrupts the agent as words do that are spoken."""
        self._floor_control.write(text)

    # the agent

    def say(
        self,
        text: str,
        *,
        interruptible: bool = True,
        kind: UtteranceKind = UtteranceKind.SPEECH,
        pcm: bytes | None = None,
        cancellable: bool = False,
    ) -> Utterance | None:
        """Queue words, or a recording of them (`pcm`). None: the caller has the floor, they are dropped.

        `cancellable`: what is said next takes the place of what is left of it.
        """
        if not self.agent_has_the_floor:
            log.debug("words_dropped", state=self.state.value)
            return None
        return self._agent.say(text, interruptible=interruptible, kind=kind, pcm=pcm, cancellable=cancellable)

    def listen(self, settings: ListenSettings = ListenSettings()) -> None:  # noqa: B008
        """The agent's turn is over: when all is heard the caller has the floor. Dropped while the caller has it."""
        if self.agent_has_the_floor:
            self._floor_control.listen(settings)

    def function_started(self, number: int, latency: LatencyControl | None) -> None:
        """A function of the agent runs: its delay responses are said, each when it is due."""
        if self.agent_has_the_floor:
            self._agent.function_started(number, latency)

    def wait_for_answer(self, control: LatencyControl | None) -> None:
        """The agent works on its answer: when it has been silent for as long as `control` says, a response is said."""
        if self.agent_has_the_floor:
            self._agent.wait_for_answer(control)

    def function_ended(self, number: int) -> None:
        """No filler of it starts any more; one that is being said ends its words."""
        self._agent.function_ended(number)

    def seize_floor(self) -> None:
        """End the caller's turn, and the agent's words, whatever they have come to: what is said next is heard."""
        self._floor_control.seize_floor()

    def stop_waiting(self) -> None:
        """The caller cannot be heard: while the caller has the floor and is silent, the turn is an empty one."""
        self._floor_control.stop_waiting()

    def set_voice(self, settings: VoiceSettings, voice: Voice | None = None) -> None:
        """From the next utterance on."""
        self._agent.set_voice(voice, settings)

    def set_language(self, language: str) -> None:
        """What the caller speaks, from the next utterance on."""
        self._caller.listener.language = language

    def set_background(self, name: str, loudness: float) -> bool:
        """A sound under all that is said; no name: none. False: there is no sound of that name."""
        return self._agent.set_background(name, loudness)

    def set_thinking_sound(self, name: str, loudness: float) -> bool:
        """A sound for waits in which nothing is said; no name: none. False: there is no sound of that name."""
        return self._agent.set_thinking_sound(name, loudness)

    async def played_out(self) -> None:
        """Wait until all that was said is heard, or discarded by a barge-in."""
        await self._agent.played_out()

    @property
    def record(self) -> TurnTimings:
        """Of the present turn; the call adds what it knows."""
        return self._floor_control.record

    @property
    def state(self) -> FloorState:
        return self._floor_control.state

    @property
    def agent_has_the_floor(self) -> bool:
        return self._floor_control.agent_has_the_floor

    @property
    def underruns(self) -> int:
        """Gaps within utterances because the voice was too slow."""
        return self._agent.underruns
