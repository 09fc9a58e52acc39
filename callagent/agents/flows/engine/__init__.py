"""The agent of one call that follows a flow project: turns, prompts, requests to the model, function results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.flows.engine.agent import (
        DEFAULT_HANGUP_UTTERANCE,
        FlowAgent,
    )
    from callagent.agents.flows.engine.conversation import (
        Conversation,
    )
    from callagent.agents.flows.engine.decision import (
        Position,
    )
    from callagent.agents.flows.engine.dialogue import (
        Dialogue,
    )
    from callagent.agents.flows.engine.function_runner import (
        FunctionAnswer,
        FunctionRunner,
    )
    from callagent.agents.flows.engine.memory import (
        CallerMemory,
        FileMemory,
    )
    from callagent.agents.flows.engine.prompt_positions import (
        flow_prompt_positions,
    )
    from callagent.agents.flows.engine.references import (
        Scope,
        find_references,
        resolve_text,
    )
    from callagent.agents.flows.engine.remote_functions import (
        fetch_remote_functions,
    )
    from callagent.agents.flows.engine.retrieval import (
        MeaningIndex,
        TopicIndex,
        WordIndex,
    )
    from callagent.agents.flows.engine.settings import (
        FlowSettings,
    )

_MODULES = {
    "CallerMemory": "memory",
    "Conversation": "conversation",
    "DEFAULT_HANGUP_UTTERANCE": "agent",
    "Dialogue": "dialogue",
    "FileMemory": "memory",
    "FlowAgent": "agent",
    "FlowSettings": "settings",
    "FunctionAnswer": "function_runner",
    "FunctionRunner": "function_runner",
    "MeaningIndex": "retrieval",
    "Position": "decision",
    "Scope": "references",
    "TopicIndex": "retrieval",
    "WordIndex": "retrieval",
    "fetch_remote_functions": "remote_functions",
    "find_references": "references",
    "flow_prompt_positions": "prompt_positions",
    "resolve_text": "references",
}

__all__ = [
    "DEFAULT_HANGUP_UTTERANCE",
    "CallerMemory",
    "Conversation",
    "Dialogue",
    "FileMemory",
    "FlowAgent",
    "FlowSettings",
    "FunctionAnswer",
    "FunctionRunner",
    "MeaningIndex",
    "Position",
    "Scope",
    "TopicIndex",
    "WordIndex",
    "fetch_remote_functions",
    "find_references",
    "flow_prompt_positions",
    "resolve_text",
]

__getattr__ = lazy_exports(__name__, _MODULES)
