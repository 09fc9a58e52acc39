from google.adk.agents import BaseAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.tools import ToolContext
from google.genai import types


def look_up(word: str, tool_context: ToolContext) -> str:
    """Look a word up."""
    tool_context.state["looked_up"] = word
    return f"{word}: a thing"


def count(callback_context, llm_request):
    callback_context.state["asked"] = callback_context.state.get("asked", 0) + 1


class Teller(BaseAgent):
    async def _run_async_impl(self, ctx):
        yield Event(author=self.name, actions=EventActions(state_delta={"topic": "boats"}))
        writer, mender = self.sub_agents
        async for event in writer.run_async(ctx):
            yield event
        for _ in range(3):
            if "storm" in ctx.session.state["story"]:
                break
            async for event in mender.run_async(ctx):
                yield event
        words = len(ctx.session.state["story"].split())
        yield Event(author=self.name, content=types.ModelContent(parts=[types.Part(text=f"{words} words.")]))
