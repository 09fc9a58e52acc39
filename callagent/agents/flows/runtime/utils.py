"""`conv.utils`: requests to the language model, secrets, validation, extraction of addresses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from callagent.agents.flows.runtime import entity_config
from callagent.agents.flows.runtime.api_types import Address
from callagent.agents.flows.runtime.clock import Clock
from callagent.agents.flows.runtime.failures import (
    ChatCompletionError,
    ExtractionError,
    InvalidInput,
    PromptLLMCallLimitError,
    SecretNotFound,
)
from callagent.agents.kernel import SECRET_NAME
from callagent.workers import AskFailed, Channel

_HINTS = 200
"""Maximum of addresses, cities or states that the model is shown."""


def extract(ask: Callable[..., Any], what: str, hints: Mapping[str, Sequence[str]], country: str) -> Address:
    """Have the model extract `what` from the caller's last words. Raises `ExtractionError` where that fails."""
    keys = [field.name for field in fields(Address)]
    prompt = (
        f"Extract {what} from what the user said last. The country is {country} unless something else was said. "
        f"Answer with one JSON object with the keys {', '.join(keys)}; null for what was not said."
    )
    for name, values in hints.items():
        if values:
            prompt += f"\nIt is {name}, perhaps misheard: {'; '.join(list(values)[:_HINTS])}"
    try:
        found = ask(prompt, show_history=True, return_json=True)
    except ChatCompletionError as error:
        raise ExtractionError(f"the model could not be asked: {error}") from None
    given = {key: str(found[key]) for key in keys if isinstance(found, dict) and found.get(key)}
    if not set(given) - {"country"}:
        raise ExtractionError(f"{what} was not found in what the caller said")
    return Address(**{"country": country, **given})


PROMPTS_PER_RUN = 25
_FENCE = re.compile(r"^\s*```[a-z]*\s*(.*?)\s*```\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The project's secrets: declared by the server, else in the worker's environment, else in the core's folder."""

    channel: Channel
    declared: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return a secret, a JSON object as a dict. Raises `InvalidInput` or `SecretNotFound`."""
        if not isinstance(name, str) or not SECRET_NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is not the name of a secret")
        value = self.declared.get(name, os.environ.get(name))
        if value is None:
            value = self._ask(name)
        if value is None:
            raise SecretNotFound(f"no secret '{name}' is declared for this project")
        return _object_or_text(value)

    def _ask(self, name: str) -> Any:
        try:
            return self.channel.ask({"type": "secret", "name": name, "ask": True})
        except AskFailed:
            return None


def _object_or_text(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


class Utils:
    EntityType = entity_config.EntityType
    NumericType = entity_config.NumericType
    NumericConfig = entity_config.NumericConfig
    QuantityConfig = entity_config.QuantityConfig
    CurrencyConfig = entity_config.CurrencyConfig
    NameConfig = entity_config.NameConfig
    FreeTextConfig = entity_config.FreeTextConfig
    AlphanumericConfig = entity_config.AlphanumericConfig
    DateConfig = entity_config.DateConfig
    EmailConfig = entity_config.EmailConfig
    TimeConfig = entity_config.TimeConfig
    PhoneNumberConfig = entity_config.PhoneNumberConfig
    EnumConfig = entity_config.EnumConfig
    EntityConfig = entity_config.EntityConfig

    def __init__(self, channel: Channel, secrets: Secrets, clock: Clock) -> None:
        self._channel = channel
        self._secrets = secrets
        self._clock = clock
        self._prompts_left = PROMPTS_PER_RUN

    def begin_run(self) -> None:
        self._prompts_left = PROMPTS_PER_RUN

    def prompt_llm(
        self, prompt: str, *, show_history: bool = False, return_json: bool = False, model: str = "gpt-4o"
    ) -> Any:
        """Ask the language model once. Raises `ChatCompletionError` or `PromptLLMCallLimitError`."""
        if self._prompts_left <= 0:
            raise PromptLLMCallLimitError(f"more than {PROMPTS_PER_RUN} prompts in one function")
        self._prompts_left -= 1
        message = {
            "type": "prompt_llm",
            "prompt": str(prompt),
            "show_history": bool(show_history),
            "return_json": bool(return_json),
            "model": str(model),
            "ask": True,
        }
        try:
            answer = self._channel.ask(message)
        except AskFailed as error:
            raise ChatCompletionError(str(error)) from None
        return _parsed(answer) if return_json else answer

    def get_secret(self, name: str) -> Any:
        return self._secrets.get(name)

    def validate_entity(self, value: Any, config: Any) -> entity_config.EntityValidationResult:
        return entity_config.validate_entity(value, config, self._clock.today())

    def extract_address(self, addresses: Iterable[Any] | None = None, country: str = "US") -> Address:
        """Extract an address from the caller's last words: one of `addresses` where given. Raises `ExtractionError`."""
        choices = [str(address) for address in addresses or ()]
        return extract(self.prompt_llm, "the postal address", {"one of these addresses": choices}, country)

    def extract_city(
        self, city_spellings: Iterable[str] | None = None, states: Iterable[str] | None = None, country: str = "US"
    ) -> Address:
        """Extract city, state and country from the caller's last words. Raises `ExtractionError`."""
        hints = {"known cities": list(city_spellings or ()), "known states": list(states or ())}
        return extract(self.prompt_llm, "the city, and the state where it is said,", hints, country)


def _parsed(answer: Any) -> Any:
    if not isinstance(answer, str):
        return answer
    fenced = _FENCE.match(answer)
    try:
        return json.loads(fenced[1] if fenced else answer)
    except ValueError:
        raise ChatCompletionError(f"the model's answer is not JSON: {answer[:200]!r}") from None
