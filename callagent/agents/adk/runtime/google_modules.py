"""The modules `google.adk` and `google.genai` that project code imports, made of our stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from callagent.agents.adk.runtime import google_classes, mcp_toolset, tools

_GENAI = {
    name: getattr(google_classes, name)
    for name in (
        "Blob", "Content", "FunctionCall", "FunctionDeclaration", "FunctionResponse", "GenerateContentConfig",
        "HarmBlockThreshold", "HarmCategory", "HttpOptions", "HttpRetryOptions", "Modality", "ModelContent", "Part",
        "PrebuiltVoiceConfig", "SafetySetting", "Schema", "SpeechConfig", "ThinkingConfig", "Tool", "Type",
        "UserContent", "VoiceConfig",
    )
}  # fmt: skip
_LLM_AGENT = {"Agent": google_classes.LlmAgent, "LlmAgent": google_classes.LlmAgent}
_CONTEXTS = {
    name: getattr(google_classes, name)
    for name in ("CallbackContext", "InvocationContext", "ReadonlyContext", "ToolContext")
}
_MODELS = {
    "BaseLlm": google_classes.BaseLlm,
    "Gemini": google_classes.Gemini,
    "LlmRequest": google_classes.LlmRequest,
    "LlmResponse": google_classes.LlmResponse,
}
_EVENTS = {"Event": google_classes.Event, "EventActions": google_classes.EventActions}
_AGENTS = {
    **_LLM_AGENT,
    **_CONTEXTS,
    **{name: getattr(google_classes, name) for name in ("BaseAgent", "LoopAgent", "ParallelAgent", "SequentialAgent")},
}
_MCP: Mapping[str, object] = {
    "McpToolset": mcp_toolset.McpToolset,
    "MCPToolset": mcp_toolset.McpToolset,
    "McpTool": mcp_toolset.McpTool,
    "MCPTool": mcp_toolset.McpTool,
}
_MCP_PARAMETERS = {
    name: getattr(mcp_toolset, name)
    for name in ("SseConnectionParams", "StdioConnectionParams", "StdioServerParameters",
                 "StreamableHTTPConnectionParams")
}  # fmt: skip
_STORAGE_TOOLS: Mapping[str, object] = {
    "load_artifacts": tools.load_artifacts,
    "load_memory": tools.load_memory,
    "preload_memory": tools.preload_memory,
}
_MEMORY = {name: getattr(google_classes, name) for name in ("MemoryEntry", "SearchMemoryResponse")}
_TOOLS = {
    **{
        name: getattr(tools, name)
        for name in (
            "AgentTool", "BaseTool", "BaseToolset", "ExampleTool", "FunctionTool", "LongRunningFunctionTool",
            "exit_loop", "get_user_choice", "transfer_to_agent",
        )
    },
    **tools.UNAVAILABLE,
    **_STORAGE_TOOLS,
    **_MCP,
    "ToolContext": google_classes.ToolContext,
}  # fmt: skip
# Module -> what `from module import …` finds there. Projects import from all of these places.
_MODULES: Mapping[str, Mapping[str, object]] = {
    "google": {},
    "google.genai": {},
    "google.genai.types": _GENAI,
    "google.adk": {"Agent": google_classes.LlmAgent},
    "google.adk.agents": _AGENTS,
    "google.adk.agents.base_agent": {"BaseAgent": google_classes.BaseAgent},
    "google.adk.agents.base_agent_config": {"BaseAgentConfig": google_classes.BaseAgentConfig},
    "google.adk.agents.callback_context": {"CallbackContext": google_classes.CallbackContext},
    "google.adk.agents.invocation_context": {"InvocationContext": google_classes.InvocationContext},
    "google.adk.agents.llm_agent": _LLM_AGENT,
    "google.adk.agents.loop_agent": {"LoopAgent": google_classes.LoopAgent},
    "google.adk.agents.parallel_agent": {"ParallelAgent": google_classes.ParallelAgent},
    "google.adk.agents.readonly_context": {"ReadonlyContext": google_classes.ReadonlyContext},
    "google.adk.agents.sequential_agent": {"SequentialAgent": google_classes.SequentialAgent},
    "google.adk.events": _EVENTS,
    "google.adk.events.event": {"Event": google_classes.Event},
    "google.adk.events.event_actions": {"EventActions": google_classes.EventActions},
    "google.adk.examples": {"Example": tools.Example},
    "google.adk.examples.example": {"Example": tools.Example},
    "google.adk.memory": _MEMORY,
    "google.adk.memory.base_memory_service": _MEMORY,
    "google.adk.memory.memory_entry": _MEMORY,
    "google.adk.models": _MODELS,
    "google.adk.models.anthropic_llm": {"Claude": google_classes.Claude},
    "google.adk.models.base_llm": {"BaseLlm": google_classes.BaseLlm},
    "google.adk.models.google_llm": {"Gemini": google_classes.Gemini},
    "google.adk.models.lite_llm": {"LiteLlm": google_classes.LiteLlm},
    "google.adk.models.llm_request": {"LlmRequest": google_classes.LlmRequest},
    "google.adk.models.llm_response": {"LlmResponse": google_classes.LlmResponse},
    "google.adk.tools": _TOOLS,
    "google.adk.tools.agent_tool": {"AgentTool": tools.AgentTool},
    "google.adk.tools.base_tool": {"BaseTool": tools.BaseTool},
    "google.adk.tools.base_toolset": {"BaseToolset": tools.BaseToolset},
    "google.adk.tools.example_tool": {"ExampleTool": tools.ExampleTool},
    "google.adk.tools.exit_loop_tool": {"exit_loop": tools.exit_loop},
    "google.adk.tools.function_tool": {"FunctionTool": tools.FunctionTool},
    "google.adk.tools.load_artifacts_tool": {
        "LoadArtifactsTool": tools.LoadArtifactsTool,
        "load_artifacts_tool": tools.load_artifacts,
    },
    "google.adk.tools.load_memory_tool": {
        "LoadMemoryTool": tools.LoadMemoryTool,
        "load_memory_tool": tools.load_memory,
    },
    "google.adk.tools.long_running_tool": {"LongRunningFunctionTool": tools.LongRunningFunctionTool},
    "google.adk.tools.mcp_tool": {**_MCP, **_MCP_PARAMETERS},
    "google.adk.tools.mcp_tool.mcp_session_manager": _MCP_PARAMETERS,
    "google.adk.tools.mcp_tool.mcp_toolset": {**_MCP, **_MCP_PARAMETERS},
    "google.adk.tools.preload_memory_tool": {
        "PreloadMemoryTool": tools.PreloadMemoryTool,
        "preload_memory_tool": tools.preload_memory,
    },
    "google.adk.tools.tool_configs": {"ToolArgsConfig": tools.ToolArgsConfig},
    "google.adk.tools.transfer_to_agent_tool": {"transfer_to_agent": tools.transfer_to_agent},
    "google.adk.tools.tool_context": {"ToolContext": google_classes.ToolContext},
}


def install() -> None:
    """Put the modules into `sys.modules`, once per process.

    They take the place of an installed google-adk as well, because project code is given objects of these classes.
    """
    try:
        # `google` is a namespace that other packages share: an installed one is kept and only added to.
        import_module("google")
    except ImportError:
        pass
    for name, values in _MODULES.items():
        module = sys.modules.get(name)
        if module is None or (name != "google" and not hasattr(module, "__callagent__")):
            module = ModuleType(name)
            module.__dict__.update(values, __path__=[], __callagent__=True)
            sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def find_stand_in(path: str) -> object:
    """Return what a dotted path into `google.adk` names, or None when there is no such stand-in."""
    module, _, name = path.rpartition(".")
    return _MODULES.get(module, {}).get(name)
