"""Settings: callagent.toml, overridden by the environment. No other package reads settings from them.

`CALLAGENT_SECTION__KEY` overrides one key (`CALLAGENT_SIP__LISTEN`). Secrets have their usual names
(`TWILIO_AUTH_TOKEN`, `OPENAI_API_KEY`), from the environment, from `.env` beside the file, or from the file that
`<NAME>_FILE` names.
"""

from callagent.config.load import find_config, function_environment, load_config, override
from callagent.config.secrets import closed_paths
from callagent.config.sections import (
    Config,
    FunctionGemmaSettings,
    ModelFallback,
    ModelProviderSettings,
    ModelSection,
    Number,
    SipSettings,
    SpeechProviderSettings,
    SpeechSettings,
    Target,
    Trunk,
    User,
    Webhook,
)
from callagent.config.values import Address, plain_address

__all__ = [
    "Address",
    "Config",
    "FunctionGemmaSettings",
    "ModelFallback",
    "ModelProviderSettings",
    "ModelSection",
    "Number",
    "SipSettings",
    "SpeechProviderSettings",
    "SpeechSettings",
    "Target",
    "Trunk",
    "User",
    "Webhook",
    "closed_paths",
    "find_config",
    "function_environment",
    "load_config",
    "override",
    "plain_address",
]
