"""Tools that keep files and memories."""

from google.adk.tools.tool_context import ToolContext
from google.genai import types


async def keep(name: str, text: str, tool_context: ToolContext) -> dict:
    """Keep a text.

    Args:
        name: Of the file.
        text: What is in it.
    """
    version = await tool_context.save_artifact(name, types.Part(text=text))
    data = types.Part.from_bytes(data=text.encode(), mime_type="text/csv")
    await tool_context.save_artifact(f"user:{name}.csv", data)
    await tool_context.save_artifact("picture.bin", types.Part.from_bytes(data=b"\x00" * 2048, mime_type="a/b"))
    return {"version": version}


async def look(name: str, version: int, tool_context: ToolContext) -> dict:
    """Look into a file."""
    found = await tool_context.load_artifact(name, version)
    newest = await tool_context.load_artifact(name)
    return {
        "text": found.text if found else None,
        "newest": newest.text if newest else None,
        "names": await tool_context.list_artifacts(),
    }


async def remember(tool_context: ToolContext) -> str:
    """Remember this conversation."""
    await tool_context.add_session_to_memory()
    found = await tool_context.search_memory("paper")
    return f"{len(found.memories)} remembered"
