"""Language models: embedded (`rules`), behind a network (`openai/MODEL`, …), scripted; and several as one.

The front door is light: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.models.embedding import open_embedder
    from callagent.models.factory import ModelNames, NamedModels, lineup_of, open_model
    from callagent.models.failover import AnswerTimeouts, FailoverModel
    from callagent.models.protocol import (
        CalledFunction,
        Declaration,
        Delta,
        Embedder,
        LanguageModel,
        Message,
        MessageCall,
        ModelSettings,
        PerCallModel,
        ProviderSettings,
        Tool,
        ToolCall,
        Usage,
        Vector,
        for_call,
    )
    from callagent.models.providers import declarations
    from callagent.models.scripted import Script, ScriptedModel, ScriptError
    from callagent.models.token_budget import TOKEN_BUDGET, MeteredModel, TokenBudget, TokensSpent

_MODULES = {
    "AnswerTimeouts": "failover",
    "CalledFunction": "protocol",
    "Declaration": "protocol",
    "Delta": "protocol",
    "Embedder": "protocol",
    "FailoverModel": "failover",
    "LanguageModel": "protocol",
    "Message": "protocol",
    "MessageCall": "protocol",
    "MeteredModel": "token_budget",
    "ModelNames": "factory",
    "ModelSettings": "protocol",
    "NamedModels": "factory",
    "PerCallModel": "protocol",
    "ProviderSettings": "protocol",
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
    "declarations": "providers",
    "for_call": "protocol",
    "lineup_of": "factory",
    "open_embedder": "embedding",
    "open_model": "factory",
}

__all__ = [
    "TOKEN_BUDGET",
    "AnswerTimeouts",
    "CalledFunction",
    "Declaration",
    "Delta",
    "Embedder",
    "FailoverModel",
    "LanguageModel",
    "Message",
    "MessageCall",
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
    "declarations",
    "for_call",
    "lineup_of",
    "open_embedder",
    "open_model",
]

__getattr__ = lazy_exports(__name__, _MODULES)
