"""Language models: `rules` (embedded), `script:FILE`, `openai/MODEL`."""

from __future__ import annotations

from callagent.models.factory import PROVIDERS, ProviderSettings, open_model
from callagent.models.protocol import (
    Delta,
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
    "Delta",
    "LanguageModel",
    "Message",
    "ModelSettings",
    "PerCallModel",
    "ProviderSettings",
    "Tool",
    "ToolCall",
    "Usage",
    "for_call",
    "open_model",
]
