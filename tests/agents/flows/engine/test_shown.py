"""What goes with the words: background sound, attachments, suggestions; a recording that nobody wants."""

from __future__ import annotations

import json
from pathlib import Path

from callagent.agents import Attach, ControlRecording, SetBackground
from callagent.agents.flows import FlowSettings
from tests.agents.flows.example_projects.support import Chat, call, chat, text
from tests.agents.flows.support import driven, function, of, write_project

__all__ = ["chat"]
SHOW = """
    from polyai.attachments import Attachment
    from polyai.webchat import ChatCallAction
    conv.add_attachments([Attachment(content_url="https://x.example/menu.png", content_type="image", title="Menu")])
    conv.set_response_suggestions(["Yes", "No"])
    conv.webchat.set_chat_call_actions([ChatCallAction("+15550100", "Call us")])
    conv.set_background_track("office", -90)
    conv.discard_recording()
    return "shown"
"""
FILES = {
    "agent_settings/rules.txt": "{{fn:show}}",
    "functions/show.py": function("show", SHOW),
}
AMBIENCE = """\
    greeting: {welcome_message: Hi., language_code: en-US}
    background_ambience: {enabled: true, preset: office-ambiance, loudness: -45}
    """


async def test_a_function_shows_something_and_sets_the_sound(tmp_path: Path):
    script = [{"calls": [{"name": "show", "arguments": {}}]}, {"text": "Here."}, {"text": "Again."}]
    async with driven(write_project(tmp_path, FILES), *script) as agent:
        assert of(SetBackground, await agent.start()) == []
        actions = await agent.says("show me")
        (shown,) = of(Attach, actions)
        assert [each["title"] for each in shown.attachments] == ["Menu"]
        assert shown.suggestions == ["Yes", "No"]
        assert [each["contact_number"] for each in shown.call_actions] == ["+15550100"]
        # Quieter than the format allows.
        assert of(SetBackground, actions) == [SetBackground("office", -70.0)]
        assert of(ControlRecording, actions) == [ControlRecording("discard")]
        assert of(Attach, await agent.says("and now")) == []


async def test_a_call_begins_with_the_sound_of_its_project(tmp_path: Path):
    root = write_project(tmp_path, {**FILES, "voice/configuration.yaml": AMBIENCE})
    async with driven(root) as agent:
        assert (await agent.start())[0] == SetBackground("office-ambiance", -45.0)
    async with driven(root, settings=FlowSettings(channel="webchat")) as agent:
        assert of(SetBackground, await agent.start()) == []
    track = json.dumps({"background_track": {"name": "cafe"}})
    older = write_project(tmp_path / "older", {**FILES, "agent_settings/experimental_config.json": track})
    async with driven(older) as agent:
        assert of(SetBackground, await agent.start()) == [SetBackground("cafe", -40.0)]


def test_as_text_the_turn_has_what_was_shown(chat: Chat, tmp_path: Path):
    root = write_project(tmp_path / "project", FILES)
    trace = chat.play(root, ["show me"], [call("show"), text("Here.")])
    assert trace.turns[1]["suggestions"] == ["Yes", "No"]
    assert trace.turns[1]["attachments"][0]["content_url"] == "https://x.example/menu.png"
    assert "suggestions" not in trace.turns[0]
