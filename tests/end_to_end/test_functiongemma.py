"""A whole call over SIP that FunctionGemma answers, on a completion server that says what the test wants."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.end_to_end.scripted import scripts, talker
from tests.end_to_end.server_process import run_command, serve
from tests.models.functiongemma.server import CompletionServer

pytestmark = pytest.mark.end_to_end

FERRY = Path(__file__).parents[1] / "projects" / "ferry"
START, END, RESPONSE = "<start_function_call>", "<end_function_call>", "<start_function_response>"


def call(inside: str) -> str:
    return f"{START}call:{inside}{END}"


HEARD = ("what is love", "sink the ship", "book for two on the first of september", "never mind goodbye")
LARGER = ("I only sell crossings.", "I had better not.", "Two people, right?")
SAVED = call("save_entities{party:2,travel_day:<escape>2026-09-01<escape>}")
ANSWERS = (
    # An irrelevant utterance: the words go to nobody, the larger model answers.
    "I cannot answer that.",
    # An invented function: asked again once, then the larger model answers.
    call("sink_ship{now:true}"),
    call("sink_ship{}"),
    # A truncated call: asked for again; then parallel calls in the step that it led to; then nothing to call.
    f"{START}call:booking_wan",
    call("booking_wanted{}"),
    SAVED + call("condition_all_given"),
    "<end_of_turn>",
    call("goodbye{}"),
)


async def test_parallel_truncated_invented_and_irrelevant_answers_in_one_call(tmp_path: Path) -> None:
    settings = scripts(tmp_path, HEARD, [{"text": text} for text in LARGER])
    settings["MODEL__FUNCTIONGEMMA__FALLBACK"] = settings["MODEL__NAME"]
    settings["MODEL__NAME"] = "functiongemma/llamacpp"
    async with CompletionServer("llamacpp", *ANSWERS).running() as completions:
        settings["MODEL__BASE_URL"] = completions.url
        with serve(tmp_path, project=FERRY, **settings) as server:
            async with talker(server.sip) as caller:
                for utterances in range(1, len(HEARD) + 1):
                    await caller.listen(utterances)
                    await caller.say()
                await caller.ended()
            (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    assert completions.answers == type(completions.answers)()
    turns = record["turns"][1:]
    assert [turn["user_input"] for turn in turns] == list(HEARD)
    assert [turn["agent_response"] for turn in turns] == [*LARGER, "Have a good crossing. Goodbye."]
    ran = [[function["name"] for function in turn["functions"]] for turn in turns]
    assert ran == [[], [], ["booking_wanted", "entry"], ["goodbye"]]
    assert record["entities"] == {"party": "2", "travel_day": "2026-09-01"}
    assert turns[-1]["requests"][0]["step"] == "Confirm"
    assert [one["name"] for one in turns[2]["requests"][1]["calls"]] == ["save_entities", "condition_all_given"]
    assert sum(request["output_tokens"] for turn in turns for request in turn["requests"]) == 3 * len(ANSWERS)
    prompts = [request["prompt"] for request in completions.requests]
    assert "there is no function 'sink_ship'" in prompts[2]
    done = run_command(
        ["models", "export-training", str(FERRY), "--output", str(tmp_path / "training")],
        CALLAGENT_RECORDS__PATH=str(server.store),
    )
    assert done.returncode == 0, done.stderr
    rows = [
        json.loads(line)
        for name in ("train", "held_out")
        for line in (tmp_path / "training" / f"{name}.jsonl").read_text().splitlines()
    ]
    recorded = {row["prompt"].removeprefix("<bos>"): row["completion"] for row in rows if "call " in row["source"]}
    # What the model is to be tuned on is what it was asked, to the letter.
    assert recorded == {
        prompts[0]: "<end_of_turn>",
        prompts[1]: "<end_of_turn>",
        prompts[3]: f"{call('booking_wanted{}')}{RESPONSE}",
        prompts[5]: f"{SAVED}{RESPONSE}",
        prompts[6]: "<end_of_turn>",
        prompts[7]: f"{call('goodbye{}')}{RESPONSE}",
    }
