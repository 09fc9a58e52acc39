import asyncio

from google.adk.models import LlmResponse
from google.adk.tools import ToolContext
from google.genai import types


def note(word: str, tool_context: ToolContext) -> None:
    """Note a word."""
    tool_context.state["steps"] = tool_context.state.get("steps", []) + [word]
    tool_context.state["user:mood"] = word


async def note_later(word: str, tool_context: ToolContext) -> dict:
    """Note a word after a while."""
    await asyncio.sleep(0.001)
    tool_context.state["later"] = word
    return {"noted": word}


def fail(word: str = ""):
    """Fail."""
    raise LookupError(f"no {word}")


def stop_round(tool_context: ToolContext):
    """End the rounds."""
    tool_context.actions.escalate = True
    return 0


def before_tool(tool, args, tool_context):
    if args.get("word") == "skipped":
        return {}
    if args.get("word") == "wrong":
        args["word"] = "right"
    if args.get("word") == "callback fails":
        raise ValueError("callback")


def after_tool(tool, args, tool_context, tool_response):
    tool_context.state["temp:last"] = tool.name
    if tool_response == {}:
        return {"seen": args.get("word")}


def before_agent(callback_context):
    callback_context.state["entered"] = callback_context.agent_name
    if callback_context.state.get("user:mood") == "closed":
        return types.Content(role="model", parts=[types.Part(text="Closed.")])


def after_agent(callback_context):
    callback_context.state["left_by"] = callback_context.agent_name
    if callback_context.state.get("user:mood") == "chatty":
        return types.ModelContent(parts=[types.Part(text="By the way.")])


def before_model(callback_context, llm_request):
    callback_context.state["asked"] = callback_context.state.get("asked", 0) + 1
    if callback_context.state.get("user:mood") == "silent":
        return LlmResponse(content=types.ModelContent(parts=[types.Part(text="Hush.")]))
    if callback_context.state.get("user:mood") == "cold":
        llm_request.config.temperature = 0.0
        llm_request.config.system_instruction = "Be cold."


def after_model(callback_context, llm_response):
    callback_context.state["answered"] = len(llm_response.content.parts) if llm_response.content else 0
    if callback_context.state.get("user:mood") == "kind":
        return LlmResponse(content=types.ModelContent(parts=[types.Part(text="Dear.")]))
