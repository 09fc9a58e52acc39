"""Language models: embedded (`rules`), behind a network (`openai/MODEL`, …), scripted; and several as one.

The front door is light: each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.models.embedding import open_embedder
    from callagent.models.factory import (
        PROVIDERS,
        open_model,
    )
    from callagent.models.failover import (
        REMOTE,
        AnswerTimeouts,
        FailoverModel,
    )
    from callagent.models.named_models import (
        ModelNames,
        NamedModels,
        lineup_of,
    )
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
        Vector,
        for_call,
    )
    from callagent.models.scripted import (
        Script,
        ScriptedModel,
        ScriptError,
    )
    from callagent.models.settings import ProviderSettings
    from callagent.models.token_budget import (
        TOKEN_BUDGET,
        MeteredModel,
        TokenBudget,
        TokensSpent,
    )

_MODULES = {
    "AnswerTimeouts": "failover",
    "Delta": "protocol",
    "Embedder": "protocol",
    "FailoverModel": "failover",
    "LanguageModel": "protocol",
    "Message": "protocol",
    "MeteredModel": "token_budget",
    "ModelNames": "named_models",
    "ModelSettings": "protocol",
    "NamedModels": "named_models",
    "PROVIDERS": "factory",
    "PerCallModel": "protocol",
    "ProviderSettings": "settings",
    "REMOTE": "failover",
    "Script": "scripted",
    "ScriptError": "scripted",
    "ScriptedModel": "scripted",
    "TOKEN_BUDGET": "token_budget",
    "TokenBudget": "token_budget",
    "TokensSpent": "token_budget",
    "Tool": "protocol",
    "ToolCall": "protocol",
    "Usage": "protocol",
    "Vector": "protocol",
    "for_call": "protocol",
    "lineup_of": "named_models",
    "open_embedder": "embedding",
    "open_model": "factory",
}

__all__ = [
    "PROVIDERS",
    "REMOTE",
    "TOKEN_BUDGET",
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
    "Script",
    "ScriptError",
    "ScriptedModel",
    "TokenBudget",
    "TokensSpent",
    "Tool",
    "ToolCall",
    "Usage",
    "Vector",
    "for_call",
    "lineup_of",
    "open_embedder",
    "open_model",
]

__getattr__ = lazy_exports(__name__, _MODULES)
