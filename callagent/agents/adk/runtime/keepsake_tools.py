"""Stand-ins for the tools by which models reach what a call keeps: artifacts and memories."""

from __future__ import annotations

from typing import Any

from callagent.agents.adk.runtime.contexts import SearchMemoryResponse, ToolContext
from callagent.agents.adk.runtime.genai import FunctionDeclaration
from callagent.agents.adk.runtime.tools import BaseTool

# The format's own sentences: models were made with them.
_ARTIFACTS = """Loads artifacts into the session for this request.

NOTE: Call when you need access to artifacts (for example, uploads saved by the
web UI)."""
_STATUS = (
    "artifact contents temporarily inserted and removed. to access these artifacts, call load_artifacts tool again."
)
_MEMORY = """Loads the memory for the current user.

Args:
  query: The query to load the memory for.

Returns:
  A list of memory results."""
_EXPLAINED = """
You have memory. You can use it to answer questions. If any questions need
you to look up the memory, you should call load_memory function with a query.
"""


class KeepsakeTool(BaseTool):
    """One whose agent's requests change by it."""

    adds = ""
    """`artifacts` or `memories`."""
    text = ""
    """That stands in the instruction."""
    remembers = False
    """The call is remembered when it ends."""
    is_seen = True
    """Models are offered it."""


class LoadArtifactsTool(KeepsakeTool):
    adds = "artifacts"

    def __init__(self, **options: Any) -> None:
        super().__init__(name="load_artifacts", description=_ARTIFACTS)

    def _get_declaration(self) -> FunctionDeclaration:
        names = {"type": "array", "items": {"type": "string"}}
        schema = {"type": "object", "properties": {"artifact_names": names}}
        return FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """The files themselves go with the next request."""
        names = args.get("artifact_names", [])
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            return {"error": "'artifact_names' must be a list of strings.", "error_code": "INVALID_ARGUMENTS"}
        return {"artifact_names": names, "status": _STATUS}


class LoadMemoryTool(KeepsakeTool):
    text = _EXPLAINED
    remembers = True

    def __init__(self, **options: Any) -> None:
        super().__init__(name="load_memory", description=_MEMORY)

    def _get_declaration(self) -> FunctionDeclaration:
        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        return FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        found: SearchMemoryResponse = await tool_context.search_memory(str(args.get("query") or ""))
        return {"result": found.model_dump(exclude_none=True)}


class PreloadMemoryTool(KeepsakeTool):
    adds = "memories"
    remembers = True
    is_seen = False

    def __init__(self, **options: Any) -> None:
        super().__init__(name="preload_memory", description="preload_memory")

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(name=self.name, description=self.description)


load_artifacts = LoadArtifactsTool()
load_memory = LoadMemoryTool()
preload_memory = PreloadMemoryTool()
