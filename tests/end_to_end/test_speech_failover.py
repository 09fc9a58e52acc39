"""A call goes on where its speech providers cannot be reached."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.end_to_end.scripted import MILL, scripts, talker
from tests.end_to_end.server_process import serve

pytestmark = pytest.mark.end_to_end

NOBODY = "http://127.0.0.1:9"
DEAD = {
    f"SPEECH__PROVIDERS__{name}__{key}": value
    for name in ("DEEPGRAM", "ELEVENLABS")
    for key, value in (("BASE_URL", NOBODY), ("API_KEY", "secret"))
}


async def test_the_next_recogniser_and_voice_take_over(tmp_path: Path) -> None:
    settings = scripts(tmp_path, ["it is broken"], [{"text": "It is noted."}])
    settings["SPEECH__RECOGNIZER"] = f"deepgram,{settings['SPEECH__RECOGNIZER']}"
    settings["SPEECH__VOICE"] = f"elevenlabs,{settings['SPEECH__VOICE']}"
    with serve(tmp_path, project=MILL, **settings, **DEAD) as server:
        async with talker(server.sip) as caller:
            await caller.listen(1)
            await caller.say()
            await caller.listen(2)
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
        failed = {(line["role"], line["provider"]) for line in server.log() if line["event"] == "provider_failed"}
    assert record["turns"][1]["user_input"] == "it is broken"
    assert record["turns"][1]["agent_response"] == "It is noted."
    assert failed == {("recognizer", "deepgram"), ("voice", "elevenlabs")}


async def test_where_no_voice_can_speak_the_caller_hears_the_recording(tmp_path: Path) -> None:
    settings = scripts(tmp_path, ["hello"], [{"text": "It is noted."}])
    settings["SPEECH__VOICE"] = "elevenlabs"
    with serve(tmp_path, project=MILL, **settings, **DEAD) as server:
        async with talker(server.sip) as caller:
            how = await caller.ended(60.0)
            caller.earpiece.close()
            heard = caller.earpiece.utterances[0]
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    assert heard.ended is not None
    assert heard.ended - heard.started < 8
    assert heard.ended - heard.started + caller.clock.stalled > 4
    assert "cannot be reached" in str(record["errors"])
    assert ("outage", "voice") in {(error["what"], error["detail"]) for error in record["errors"]}
    assert (how, record["end_reason"]) == ("the server hung up", "error")


async def test_where_no_voice_can_speak_the_caller_is_given_to_the_fallback(tmp_path: Path) -> None:
    settings = scripts(tmp_path, ["hello"], [{"text": "It is noted."}])
    settings["SPEECH__VOICE"] = "elevenlabs"
    path = tmp_path / "callagent.toml"
    path.write_text(
        f'[[numbers]]\nproject = "{MILL}"\nfallback = "reception"\n'
        '[[targets]]\nname = "reception"\nuri = "sip:reception@192.0.2.1"\n'
    )
    targets: list[str] = []
    with serve(tmp_path, "--config", str(path), project=MILL, **settings, **DEAD) as server:
        async with talker(server.sip) as caller:
            caller.line.on_transfer = targets.append
            await caller.ended(60.0)
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
    assert [target.partition("@")[0] for target in targets] == ["sip:reception"]
    assert (record["end_reason"], record["handoff_outcome"]) == ("handoff", "succeeded")
    assert record["provider_failures"][0]["provider"] == "elevenlabs"
