from google.adk.agents import LlmAgent
from google.adk.tools import BaseTool, FunctionTool, ToolContext
from google.genai import types
from pydantic import BaseModel


class Book(BaseModel):
    title: str
    pages: int = 0


class Summary(BaseModel):
    text: str
    stars: int


def search(word: str, tool_context: ToolContext) -> list[str]:
    """Search the catalogue."""
    tool_context.state["searched"] = word
    return [f"On {word}"]


finder = LlmAgent(name="finder", description="Finds books.", instruction="Find books.", tools=[search])


def ask_for_loan(title: str) -> dict:
    """Ask whether a book may be lent."""
    return {"status": "pending", "title": title}


def make_clock(args):
    def clock() -> str:
        """Tell the time."""
        return f"noon in {args.zone}"

    return FunctionTool(clock)


class Stamp(BaseTool):
    def __init__(self, ink: str):
        super().__init__(name="stamp", description="Stamps a book.")
        self.ink = ink

    @classmethod
    def from_config(cls, config, config_abs_path):
        return cls(ink=config.ink)

    def _get_declaration(self):
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema={
                "type": "object",
                "properties": {"date": {"type": "string"}},
                "required": ["date"],
            },
        )

    async def run_async(self, *, args, tool_context):
        return f"{self.ink} {args['date']}"


def find_shelf(title: str, floor: int = 0) -> str:
    """Find the shelf of a book."""
    return f"{title} on {floor}"


shelf = FunctionTool(find_shelf)
