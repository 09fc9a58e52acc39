"""Language models: embedded (`rules`), behind a network (`openai/MODEL`, …), scripted; and several as one."""

from __future__ import annotations

from callagent.models.embedding import open_embedder
from callagent.models.factory import PROVIDERS, ProviderSettings, open_model
from callagent.models.failover import REMOTE, AnswerTimeouts, FailoverModel
from callagent.models.metered import MeteredModel
from callagent.models.names import ModelNames, NamedModels, lineup_of
from callagent.models.protocol import (
    Delta,
    Embedder,
    LanguageModel,
    Message,
    ModelSettings,
    PerCallModel,
    Tool,
    ToolCall,
    Usage,
    for_call,
)

__all__ = [
    "PROVIDERS",
    "REMOTE",
    "AnswerTimeouts",
    "Delta",
    "Embedder",
    "FailoverModel",
    "LanguageModel",
    "Message",
    "MeteredModel",
    "ModelNames",
    "ModelSettings",
    "NamedModels",
    "PerCallModel",
    "ProviderSettings",
    "Tool",
    "ToolCall",
    "Usage",
    "for_call",
    "lineup_of",
    "open_embedder",
    "open_model",
]
