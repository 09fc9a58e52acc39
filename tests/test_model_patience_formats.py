"""A model that stops in the middle of a sentence, in a call with an agent of each format, on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import AgentProject
from callagent.agents.adk import adk_runtime, load_adk_project
from callagent.agents.cx import cx_runtime, load_cx_app
from callagent.agents.flows import load_flow_project, project_runtime
from callagent.agents.tree import TreeSettings
from callagent.call import Call, CallServices, CallSettings
from callagent.models import Delta, FailoverModel, LanguageModel, Message, ModelSettings, Tool
from callagent.testing.in_process import InProcessPool
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.agents.adk.support import write_project as write_tree
from tests.agents.cx.support import GREETING, write_app
from tests.agents.flows.support import write_project as write_flow
from tests.call.test_call import MemoryStore
from tests.fakes import FakeLeg, LoudnessActivity
from tests.test_model_patience import MAX_SILENCE
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

FIRST, SECOND = (sentence + "." for sentence in ANSWERS[0].rstrip(".").split(". "))
BEGUN = SECOND.split()[:2]


class StoppingModel:
    """Stops within the second sentence of its first answer; its second one is whole."""

    def __init__(self) -> None:
        self.requests: list[list[Message]] = []

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        self.requests.append(list(messages))
        stops = len(self.requests) == 1
        for word in [*FIRST.split(), *BEGUN] if stops else ANSWERS[1].split():
            await asyncio.sleep(0.02)
            yield Delta(text=word + " ")
        if stops:
            await asyncio.Event().wait()

    async def close(self) -> None:
        return None


def flow(folder: Path, model: LanguageModel) -> AgentProject:
    path = write_flow(folder, {"agent_settings/rules.txt": "Answer the caller."})
    return load_flow_project(path, model, InProcessPool(project_runtime(path)))


def app(folder: Path, model: LanguageModel) -> AgentProject:
    path = write_app(folder, callbacks={"before_model": GREETING})
    return load_cx_app(path, model, InProcessPool(cx_runtime(path)))


def tree(folder: Path, model: LanguageModel) -> AgentProject:
    path = write_tree(folder, {"root_agent.yaml": "name: reception\ninstruction: Answer the telephone.\n"})
    return load_adk_project(path, model, InProcessPool(adk_runtime(path)), TreeSettings(greeting="Hello."))


async def play(
    make_project: Callable[[Path, LanguageModel], AgentProject], folder: Path, model: StoppingModel
) -> Trial:
    leg = FakeLeg()
    media = leg.media = TappedMedia()
    media.speech = list(SPEECH)
    asyncio.get_running_loop().call_later(26.0, leg.hangs_up)

    def make_turn_manager(emit: Any) -> TurnManager:
        settings = TurnSettings(final_wait=5.0, no_input=60.0)
        return TurnManager(CallerInput(WordRecognizer(), LoudnessActivity()), WordVoice(), emit, settings)

    project = make_project(folder, FailoverModel([("openai/model", model)]))
    services = CallServices(MemoryStore(), resolve, lambda provider, name: False)  # type: ignore[arg-type]
    record = await Call(leg, project, make_turn_manager, services, CallSettings(filler_after=1.2)).run()
    return Trial(record, leg, media.levels, ModelAgent())


@pytest.mark.parametrize("make_project", [flow, app, tree])
def test_what_was_said_of_an_answer_that_stopped_is_in_the_history(
    make_project: Callable[[Path, LanguageModel], AgentProject], tmp_path: Path
) -> None:
    model = StoppingModel()
    trial = run(play(make_project, tmp_path, model))
    assert trial.words == [*FIRST.split(), *ANSWERS[1].split()]
    assert max(trial.silences()) <= MAX_SILENCE
    assert trial.record.turns[1].agent_response.startswith(FIRST)
    history = [str(message.get("content")) for message in model.requests[1] if message["role"] == "assistant"]
    (answer,) = [text for text in history if FIRST in text]
    assert BEGUN[-1] not in answer
