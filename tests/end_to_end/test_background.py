"""A flow project's background track lies under the whole call, and ends when a function takes it away."""

from __future__ import annotations

import asyncio
import audioop
import wave
from itertools import groupby
from pathlib import Path

import pytest

from tests.agents.flows.support import function, write_project
from tests.end_to_end.scripted import scripts, talker, until
from tests.end_to_end.server_process import serve

pytestmark = pytest.mark.end_to_end
FILES = {
    "agent_settings/rules.txt": "{{fn:hush}}",
    "agent_settings/experimental_config.json": '{"background_track": {"name": "restaurant-ambiance", "loudness": -30}}',
    "voice/configuration.yaml": "greeting: {welcome_message: Hello., language_code: en-US}\n",
    "functions/hush.py": function("hush", "conv.set_background_track('')"),
}
SECOND = 8000 * 2


async def test_a_background_track_is_heard_between_the_words_until_it_is_taken_away(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", FILES)
    settings = scripts(
        tmp_path, ["be quiet"], [{"calls": [{"name": "hush", "arguments": {}}]}, {"text": "As you wish."}]
    )
    settings["RECORDS__RECORDINGS"] = str(tmp_path / "recordings")
    with serve(tmp_path, project=project, **settings) as server:
        async with talker(server.sip) as caller:
            # The track is sound, too: the caller cannot tell where the greeting ends.
            await until(lambda: caller.frames >= 150, 60)
            await caller.say()
            await until(lambda: caller.clock() - caller.sounded > 2, 60)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert record["errors"] == []
    (recording,) = (tmp_path / "recordings").glob("*.wav")
    with wave.open(str(recording)) as file:
        agent = audioop.tomono(file.readframes(file.getnframes()), 2, 0, 1)
    sound = [audioop.rms(agent[at : at + SECOND // 5], 2) > 150 for at in range(0, len(agent), SECOND // 5)]
    runs = [(loud, len(list(group))) for loud, group in groupby(sound)]
    longest = max(count for loud, count in runs if loud)
    assert longest >= 10, f"fifths of a second with and without sound: {runs}"
    assert sound[-6:-1] == [False] * 5, f"it goes on: {runs}"
