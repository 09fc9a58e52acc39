"""The turn manager of a call: the interface between a leg's media, the recogniser and the call."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from callagent.agents import LatencyControl, ListenSettings
from callagent.log import get_logger
from callagent.speech import Voice, VoiceSettings
from callagent.turns.agent_speech import Sounds
from callagent.turns.caller_speech import CallerInput, CallerSpeech
from callagent.turns.events import TurnEvent, TurnTimings
from callagent.turns.floor import FloorState, TurnSettings
from callagent.turns.floor_control import FloorControl
from callagent.turns.playout import Utterance, UtteranceKind

log = get_logger(__name__)


class WireMedia(Protocol):
    """What the turn manager needs of the audio of an answered leg."""

    def start(self, sink: Callable[[bytes, float], None], source: Callable[[], bytes | None]) -> None:
        """Call `sink` with each frame of the caller and its time, and take the agent's frames from `source`."""

    def clear(self) -> float:
        """Drop frames that were taken and are not yet played; return how many seconds they last."""

    def unheard(self) -> float:
        """Return how many seconds were taken and are not yet played."""


class TurnManager:
    """Takes turns between the caller and the agent of one call.

    Made, used and closed on the event loop. Only `next_frame` runs on the pump thread.
    """

    def __init__(
        self,
        caller_input: CallerInput,
        voice: Voice,
        emit: Callable[[TurnEvent], None],
        settings: TurnSettings = TurnSettings(),  # noqa: B008
        sounds: Sounds = lambda name: None,
    ) -> None:
        self._recognizer = caller_input.recognizer
        self._caller = CallerSpeech(caller_input, settings.acknowledgements)
        self._control = FloorControl(self._caller, voice, emit, settings, sounds)
        self._agent = self._control.agent

    async def __aenter__(self) -> Self:
        """Open the recogniser's stream. Raises `ProviderError`."""
        if self._recognizer is not None:
            self._caller.transcription.open(await self._recognizer.open(self._control.take_transcript))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The floor closes first, because what the other parts report while they close must not begin a turn.
        self._control.close()
        self._caller.transcription.close()
        await self._agent.close()

    # the caller

    def start(self, media: WireMedia) -> None:
        """Begin to use the audio of the answered leg. Called once."""
        # Set before the first frame, which may already be speech that pauses the agent and clears the wire.
        self._agent.unheard = media.unheard
        self._control.clear_wire = media.clear
        media.start(self.on_frame, self.next_frame)

    def on_frame(self, pcm: bytes, now: float) -> None:
        """Take 20 ms from the caller that arrived at `now`. A barge-in has silenced the playout when this returns."""
        for edge in self._caller.feed_audio(pcm, now):
            self._control.take_edge(edge)

    def on_digit(self, digit: str) -> None:
        """Take a key press of the caller."""
        self._control.press_key(digit)

    def write(self, text: str) -> None:
        """Take a written message of the caller as a whole turn. It interrupts the agent as spoken words do."""
        self._control.write(text)

    def set_language(self, language: str) -> None:
        """Set the language that the caller speaks, from the next utterance on."""
        self._caller.transcription.language = language

    def stop_waiting(self) -> None:
        """Give the call an empty turn now, if the caller has the floor and is silent: the recogniser has failed."""
        self._control.stop_waiting()

    # the agent

    def next_frame(self) -> bytes | None:
        """Return the agent's next 20 ms, or None if nothing is to be sent. Called on the pump thread."""
        return self._agent.next_frame()

    def say(
        self,
        text: str,
        *,
        interruptible: bool = True,
        kind: UtteranceKind = UtteranceKind.SPEECH,
        pcm: bytes | None = None,
        cancellable: bool = False,
    ) -> Utterance | None:
        """Queue an utterance, as text for the voice or as a recording of it (`pcm`).

        Returns None, and drops it, while the caller has the floor: it belongs to a reply that was interrupted.
        `cancellable`: the next utterance takes the place of what is left of this one.
        """
        if not self.agent_has_the_floor:
            log.debug("words_dropped", state=self.state.value)
            return None
        return self._agent.say(text, interruptible=interruptible, kind=kind, pcm=pcm, cancellable=cancellable)

    def listen(self, settings: ListenSettings = ListenSettings()) -> None:  # noqa: B008
        """Give the caller the floor once everything is heard. Does nothing while the caller has it."""
        if self.agent_has_the_floor:
            self._control.listen(settings)

    def function_started(self, number: int, latency: LatencyControl | None) -> None:
        """Say the delay responses of a function that has started, when they are due."""
        if self.agent_has_the_floor:
            self._agent.function_started(number, latency)

    def function_ended(self, number: int) -> None:
        """Start none of the function's delay responses any more; one that is being said is said to its end."""
        self._agent.function_ended(number)

    def wait_for_answer(self, control: LatencyControl | None) -> None:
        """Say the responses of `control`, after the silences that it sets, while the agent works on its answer."""
        if self.agent_has_the_floor:
            self._agent.wait_for_answer(control)

    def seize_floor(self) -> None:
        """End the caller's turn, or the agent's words, so that what is said next is heard at once."""
        self._control.seize_floor()

    async def played_out(self) -> None:
        """Wait until everything that was said is heard, or discarded by a barge-in."""
        await self._agent.played_out()

    def set_voice(self, settings: VoiceSettings, voice: Voice | None = None) -> None:
        """Set how the agent sounds, from the next utterance on."""
        self._agent.set_voice(voice, settings)

    def set_background(self, name: str, loudness: float) -> bool:
        """Play a sound under all that is said; an empty name stops it. Return whether there is a sound of that name."""
        return self._agent.set_background(name, loudness)

    def set_thinking_sound(self, name: str, loudness: float) -> bool:
        """Set the sound of waits in which nothing is said. Return whether there is a sound of that name."""
        return self._agent.set_thinking_sound(name, loudness)

    # state

    @property
    def timings(self) -> TurnTimings:
        """The timings of the present turn, to which the call adds those that it knows."""
        return self._control.timings

    @property
    def state(self) -> FloorState:
        return self._control.state

    @property
    def agent_has_the_floor(self) -> bool:
        return self._control.agent_has_the_floor

    @property
    def underruns(self) -> int:
        """How many gaps utterances had because the voice was too slow."""
        return self._agent.underruns
