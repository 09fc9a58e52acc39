from typing import Literal, Optional

from google.adk.tools.tool_context import ToolContext
from pydantic import BaseModel


class Address(BaseModel):
    """Where a part goes."""

    street: str
    town: str = "Alder"


def look_up_bicycle(number: int, tool_context: ToolContext) -> dict:
    """Look a bicycle up by its frame number.

    Args:
      number: The number on the frame.
    """
    bicycle = {"number": number, "parts": []}
    tool_context.state["bicycle"] = bicycle
    return {"number": number}


async def order_part(
    part: str,
    colour: Literal["black", "red"] = "black",
    count: int = 1,
    to: Optional[Address] = None,
    *,
    tool_context: ToolContext = None,
):
    """Order a part."""
    if tool_context is not None and "bicycle" in tool_context.state:
        # Nothing is assigned: the change is inside the value.
        tool_context.state["bicycle"]["parts"].append(part)
    return f"{count} {colour} {part} to {to.town if to else 'us'}"


def pass_to_workshop(tool_context: ToolContext):
    """Give the caller to the people who repair."""
    tool_context.actions.transfer_to_agent = "repairs"
    return "going"


def break_down():
    """Never call this."""
    raise RuntimeError("the telephone is on fire")
