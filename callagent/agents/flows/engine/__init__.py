"""The agent of one call that follows a flow project: turns, prompts, requests to the model, function results."""

from callagent.agents.flows.engine.agent import DEFAULT_HANGUP_UTTERANCE, FlowAgent
from callagent.agents.flows.engine.conversation import Conversation, FlowSettings
from callagent.agents.flows.engine.decision import Position
from callagent.agents.flows.engine.entity_values import validate
from callagent.agents.flows.engine.function_calls import (
    FunctionAnswer,
    FunctionCalls,
    FunctionRunner,
    fetch_remote_functions,
)
from callagent.agents.flows.engine.memory import CallerMemory, FileMemory
from callagent.agents.flows.engine.model_request import build_request
from callagent.agents.flows.engine.prompt import Prompt, Scope, find_references, resolve_text
from callagent.agents.flows.engine.retrieval import MeaningIndex, TopicIndex, WordIndex

__all__ = [
    "DEFAULT_HANGUP_UTTERANCE",
    "CallerMemory",
    "Conversation",
    "FileMemory",
    "FlowAgent",
    "FlowSettings",
    "FunctionAnswer",
    "FunctionCalls",
    "FunctionRunner",
    "MeaningIndex",
    "Position",
    "Prompt",
    "Scope",
    "TopicIndex",
    "WordIndex",
    "build_request",
    "fetch_remote_functions",
    "find_references",
    "resolve_text",
    "validate",
]
