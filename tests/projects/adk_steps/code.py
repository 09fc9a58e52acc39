from collections.abc import AsyncGenerator

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types


def begin(callback_context):
    callback_context.state["round"] = 1


def finish(callback_context):
    return types.Content(role="model", parts=[types.Part(text=f"Planned: {callback_context.state['choice']}")])


class Weather(BaseAgent):
    sky: str = "grey"

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for number in (1, 2):
            yield Event(
                author=self.name,
                invocation_id=ctx.invocation_id,
                content=types.ModelContent(parts=[types.Part(text=f"{number}: the sky is {self.sky}")]),
                actions=EventActions(state_delta={"sky": [self.sky] * number}),
            )


def speak_about_sky(context):
    return f"Say goodbye under a {context.state['sky'][0]} sky."


farewell = LlmAgent(name="farewell", description="Says goodbye.", instruction=speak_about_sky)
