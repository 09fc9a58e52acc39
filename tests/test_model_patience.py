"""Models that hang, drip or stop in the middle of a sentence, in whole calls on the virtual clock.

Whatever the model does, the caller never waits longer than three seconds without a voice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest

from callagent.agents import Listen, Say
from callagent.audio import FRAME_SECONDS
from callagent.call import Call, CallServices, CallSettings
from callagent.models import Delta, FailoverModel, Message, ModelSettings, Tool
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.call.test_call import MemoryStore
from tests.fakes import FakeLeg, FakeProject, LoudnessActivity
from tests.test_provider_faults import (
    ANSWERS,
    SPEECH,
    ModelAgent,
    TappedMedia,
    Trial,
    WordRecognizer,
    WordVoice,
    resolve,
)

MAX_SILENCE = 3.0
FIRST_SENTENCE = ANSWERS[0].split()[:5]


@dataclass
class SlowModel:
    """`hang`: never begins; `drip`: a word each 1.9 s; `stop`: no further token in its second sentence."""

    way: str = ""

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        asked = sum("caller" in message for message in messages)
        if self.way == "hang":
            await asyncio.Event().wait()
        for number, word in enumerate(ANSWERS[asked - 1].split()):
            if self.way == "stop" and number == len(FIRST_SENTENCE) + 2:
                await asyncio.Event().wait()
            await asyncio.sleep(1.9 if self.way == "drip" else 0.02)
            yield Delta(text=word + " ")

    async def close(self) -> None:
        return None


async def play(agent: ModelAgent, *, filler_after: float = 1.2, hang_up: float = 45.0) -> Trial:
    leg = FakeLeg()
    media = leg.media = TappedMedia()
    media.speech = [SPEECH[0]]
    asyncio.get_running_loop().call_later(hang_up, leg.hangs_up)

    def make_turn_manager(emit: Any) -> TurnManager:
        return TurnManager(
            CallerInput(WordRecognizer(), LoudnessActivity()),
            WordVoice(),
            emit,
            TurnSettings(final_wait=5.0, no_input=60.0),
        )

    settings = CallSettings(filler_after=filler_after)
    services = CallServices(MemoryStore(), resolve, lambda provider, name: False)  # type: ignore[arg-type]
    record = await Call(leg, FakeProject(agent), make_turn_manager, services, settings).run()
    return Trial(record, leg, media.levels, agent)


def agent_with(*ways: str) -> ModelAgent:
    model = FailoverModel([(f"openai/{number}", SlowModel(way)) for number, way in enumerate(ways)])
    return ModelAgent(greeting=(Say("Hello."), Listen()), model=_Counted(model))


class _Counted:
    """Marks the agent's messages as turns of the caller."""

    def __init__(self, model: FailoverModel) -> None:
        self._model = model

    def stream(self, messages: Any, tools: Any, settings: Any) -> Any:
        return self._model.stream([{"role": "user", "caller": True} for _ in messages], tools, settings)


def longest_silence(levels: Sequence[int]) -> float:
    """From the caller's last word to the last sound of the answer, in seconds."""
    after = levels[round(SPEECH[0][1] / FRAME_SECONDS) :]
    last = max(place for place, level in enumerate(after) if level)
    longest = current = 0
    for level in after[:last]:
        current = 0 if level else current + 1
        longest = max(longest, current)
    return longest * FRAME_SECONDS


@pytest.mark.parametrize("way", ["hang", "drip", "stop"])
@pytest.mark.parametrize("fallback", [True, False])
def test_the_caller_never_waits_three_seconds_without_a_voice(way: str, fallback: bool) -> None:
    trial = run(play(agent_with(way, "") if fallback else agent_with(way)))
    assert longest_silence(trial.levels) <= MAX_SILENCE
    if fallback or way == "drip":
        assert trial.words == ANSWERS[0].split(), "each word of the answer once, whoever gave it"
    else:
        assert trial.words == (FIRST_SENTENCE if way == "stop" else [])
        assert "Sorry, once more please." in [spoken.text for spoken in trial.record.turns[1].spoken]


def fillers(trial: Trial) -> list[str]:
    return [spoken.text for turn in trial.record.turns for spoken in turn.spoken if spoken.kind == "filler"]


def test_a_word_of_patience_comes_only_once_the_answer_is_late() -> None:
    assert fillers(run(play(agent_with("")))) == []
    assert fillers(run(play(agent_with("hang", "")))) == ["One moment, please."]


def test_a_slow_start_function_is_covered_once_the_phone_is_answered() -> None:
    agent = agent_with("")
    agent.start_seconds = 12.0
    trial = run(play(agent))
    assert fillers(trial)[0] == "One moment, please."
    # The phone is answered 3 s after it began to ring, and the greeting comes after 12 s.
    waiting = trial.levels[: round(9.0 / FRAME_SECONDS)]
    silences = [sum(1 for _ in group) for level, group in groupby(waiting) if not level]
    assert max(silences) * FRAME_SECONDS <= MAX_SILENCE


def test_the_words_of_patience_can_be_switched_off() -> None:
    assert fillers(run(play(agent_with("hang"), filler_after=0.0))) == []
