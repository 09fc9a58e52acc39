"""How a provider of language models is reached. Stands below the factory and all providers, which read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from callagent.models.protocol import LanguageModel


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """How a provider is reached; the embedded models need none of it."""

    base_url: str = ""
    """Empty: the provider's own."""
    api_key: str = field(default="", repr=False)
    temperature: float | None = None
    """Used where a request does not set its own."""
    reasoning_effort: str = ""
    """`none`, `minimal`, `low`, `medium` or `high`, for models that reason; empty: the model's own."""
    first_token_timeout: float = 6.0
    """Seconds from the request to the first token."""
    next_token_timeout: float = 2.0
    """Seconds from one token to the next."""
    total_timeout: float = 30.0
    """Seconds from the request to the end of the answer."""
    fallback: LanguageModel | None = None
    """Of FunctionGemma: answers where it calls no function."""
