"""`conv.utils`: requests to the language model, secrets, entity types and their validation, extraction of addresses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime, time
from enum import Enum
from typing import Any

from callagent.agents.flows.runtime import api_types
from callagent.agents.flows.runtime.clock import Clock
from callagent.agents.kernel import SECRET_NAME
from callagent.workers import AskFailed, Channel

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_CALLING_CODES = {"US": "1", "CA": "1", "GB": "44", "UK": "44", "DE": "49", "FR": "33", "ES": "34", "IT": "39"}


class EntityType(Enum):
    ADDRESS = "address"
    ALPHANUMERIC = "alphanumeric"
    CURRENCY = "currency"
    DATE = "date"
    EMAIL = "email"
    ENUM = "enum"
    FREE_TEXT = "free_text"
    NAME = "name"
    NUMERIC = "numeric"
    PHONE_NUMBER = "phone_number"
    QUANTITY = "quantity"
    TIME = "time"


class NumericType(Enum):
    INT = "int"
    FLOAT = "float"


@dataclass
class EntityConfig:
    """Base class of entity configurations; it accepts any text."""

    def check(self, text: str, today: date) -> object:
        """Return the native value. Raises ValueError with a text for the model."""
        del today
        return text


@dataclass
class NumericConfig(EntityConfig):
    min_inclusive: float | None = None
    max_inclusive: float | None = None
    numeric_type: object = None

    def check(self, text: str, today: date) -> object:
        number = float(re.sub(r"[,\s$€£]", "", text))
        if self.min_inclusive is not None and number < self.min_inclusive:
            raise ValueError(f"must be at least {self.min_inclusive:g}")
        if self.max_inclusive is not None and number > self.max_inclusive:
            raise ValueError(f"must be at most {self.max_inclusive:g}")
        return self._native(number)

    def _native(self, number: float) -> float:
        # Without a type a whole number becomes an int, because projects compare and print it.
        if self.numeric_type in (None, float, "float", NumericType.FLOAT):
            return int(number) if self.numeric_type is None and number.is_integer() else number
        if not number.is_integer():
            raise ValueError("must be a whole number")
        return int(number)


@dataclass
class QuantityConfig(NumericConfig): ...


@dataclass
class CurrencyConfig(NumericConfig): ...


@dataclass
class NameConfig(EntityConfig): ...


@dataclass
class FreeTextConfig(EntityConfig): ...


@dataclass
class AlphanumericConfig(EntityConfig):
    custom_regex: str | None = None
    capturing_group: int | str | None = None

    def check(self, text: str, today: date) -> object:
        match = re.fullmatch(self.custom_regex or ".+", text)
        if match is None:
            raise ValueError("does not have the expected form")
        return match[self.capturing_group] if self.capturing_group is not None else text


@dataclass
class EmailConfig(AlphanumericConfig):
    def check(self, text: str, today: date) -> object:
        if not _EMAIL.fullmatch(text):
            raise ValueError("is not an e-mail address")
        return super().check(text, today)


@dataclass
class DateConfig(EntityConfig):
    day_first: bool | None = None
    earliest_date_inclusive: date | None = None
    latest_date_inclusive: date | None = None

    def check(self, text: str, today: date) -> object:
        day = self._parse(text)
        if self.earliest_date_inclusive is not None and day < self.earliest_date_inclusive:
            raise ValueError(f"must not be before {self.earliest_date_inclusive}")
        if self.latest_date_inclusive is not None and day > self.latest_date_inclusive:
            raise ValueError(f"must not be after {self.latest_date_inclusive}")
        return day

    def _parse(self, text: str) -> date:
        spoken = ("%d/%m/%Y", "%d.%m.%Y") if self.day_first else ("%m/%d/%Y", "%m.%d.%Y")
        # Models are asked to write dates in ISO 8601, which is tried first; then the region's forms are tried.
        for form in ("%Y-%m-%d", *spoken, "%d %B %Y", "%B %d %Y", "%B %d, %Y"):
            try:
                return datetime.strptime(text, form).date()
            except ValueError:
                continue
        raise ValueError("is not a date such as 2025-12-31")


@dataclass
class TimeConfig(EntityConfig):
    format: str | None = None
    earliest_time_inclusive: time | None = None
    latest_time_inclusive: time | None = None
    time_pivot: object = None

    def check(self, text: str, today: date) -> object:
        for form in filter(None, (self.format, "%H:%M", "%H:%M:%S", "%I:%M %p", "%I %p", "%I%p")):
            try:
                found = datetime.strptime(text.upper().replace(".", ""), form).time()
            except ValueError:
                continue
            earliest, latest = self.earliest_time_inclusive, self.latest_time_inclusive
            if (earliest is not None and found < earliest) or (latest is not None and found > latest):
                raise ValueError("is outside of the times allowed")
            return found
        raise ValueError("is not a time such as 17:30")


@dataclass
class PhoneNumberConfig(EntityConfig):
    regions: set[str] = field(default_factory=set)

    def check(self, text: str, today: date) -> object:
        number = re.sub(r"[\s().-]", "", text)
        if not re.fullmatch(r"\+?\d{7,15}", number):
            raise ValueError("is not a phone number")
        codes = tuple(f"+{_CALLING_CODES[region]}" for region in self.regions if region in _CALLING_CODES)
        if number.startswith("+") and codes and not number.startswith(codes):
            raise ValueError(f"is not a number of {', '.join(sorted(self.regions))}")
        return number


@dataclass
class EnumConfig(EntityConfig):
    allowed_vals: set[str] = field(default_factory=set)

    def check(self, text: str, today: date) -> object:
        for allowed in self.allowed_vals:
            if str(allowed).casefold() == text.casefold():
                return allowed
        raise ValueError(f"must be one of: {', '.join(sorted(map(str, self.allowed_vals)))}")


@dataclass
class EntityValidationResult:
    """A value in `conv.entities`, and the result of `validate_entity`; `valid` and `is_valid` are the same."""

    id: str = ""
    name: str = ""
    valid: bool = True
    value: Any = None
    type: str = ""
    error: str | None = None
    details: object = None

    @property
    def is_valid(self) -> bool:
        return self.valid

    @property
    def message(self) -> str | None:
        return self.error

    def __str__(self) -> str:
        return "" if self.value is None else str(self.value)


def validate_entity(value: object, config: object, today: date) -> EntityValidationResult:
    """Validate a value against a configuration object (or class) of `conv.utils`."""
    config = config() if isinstance(config, type) else config
    if not isinstance(config, EntityConfig):
        raise TypeError(f"{type(config).__name__} is not an entity configuration of conv.utils")
    kind = type(config).__name__.removesuffix("Config")
    text = str(value).strip() if value is not None else ""
    try:
        if not text:
            raise ValueError("is empty")
        return EntityValidationResult(value=config.check(text, today), type=kind)
    except ValueError as error:
        return EntityValidationResult(valid=False, value=value, type=kind, error=str(error))


_MAX_HINTS = 200
"""Addresses, cities or states that the model is shown."""


def extract(
    ask: Callable[..., object], what: str, hints: Mapping[str, Sequence[str]], country: str
) -> api_types.Address:
    """Have the model extract `what` from the caller's last words. Raises `ExtractionError` where that fails."""
    keys = [field.name for field in fields(api_types.Address)]
    prompt = (
        f"Extract {what} from what the user said last. The country is {country} unless something else was said. "
        f"Answer with one JSON object with the keys {', '.join(keys)}; null for what was not said."
    )
    for name, values in hints.items():
        if values:
            prompt += f"\nIt is {name}, perhaps misheard: {'; '.join(list(values)[:_MAX_HINTS])}"
    try:
        found = ask(prompt, show_history=True, return_json=True)
    except api_types.ChatCompletionError as error:
        raise api_types.ExtractionError(f"the model could not be asked: {error}") from None
    given = {key: str(found[key]) for key in keys if isinstance(found, dict) and found.get(key)}
    # A country alone may be the default of the prompt, which the model has repeated.
    if not set(given) - {"country"}:
        raise api_types.ExtractionError(f"{what} was not found in what the caller said")
    return api_types.Address(**{"country": country, **given})


PROMPTS_PER_RUN = 25
"""Calls of `prompt_llm` in one function run."""
_FENCE = re.compile(r"^\s*```[a-z]*\s*(.*?)\s*```\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The project's secrets: from the call's context, else from the worker's environment, else asked of the core."""

    channel: Channel
    declared: Mapping[str, object] = field(default_factory=dict)

    def get(self, name: str) -> object:
        """Return a secret, a JSON object as a dict. Raises `InvalidInput` or `SecretNotFound`."""
        # The core reads a file of this name, so it holds only letters, digits and a few signs.
        if not isinstance(name, str) or not SECRET_NAME.fullmatch(name):
            raise api_types.InvalidInput(f"{name!r} is not the name of a secret")
        # A worker's environment holds only the variables that the settings declare.
        value = self.declared.get(name, os.environ.get(name))
        if value is None:
            value = self._ask(name)
        if value is None:
            raise api_types.SecretNotFound(f"no secret '{name}' is declared for this project")
        return _object_or_text(value)

    def _ask(self, name: str) -> object:
        try:
            return self.channel.ask({"type": "secret", "name": name, "ask": True})
        except AskFailed:
            return None


def _object_or_text(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


class Utils:
    EntityType = EntityType
    NumericType = NumericType
    NumericConfig = NumericConfig
    QuantityConfig = QuantityConfig
    CurrencyConfig = CurrencyConfig
    NameConfig = NameConfig
    FreeTextConfig = FreeTextConfig
    AlphanumericConfig = AlphanumericConfig
    DateConfig = DateConfig
    EmailConfig = EmailConfig
    TimeConfig = TimeConfig
    PhoneNumberConfig = PhoneNumberConfig
    EnumConfig = EnumConfig
    EntityConfig = EntityConfig

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
            raise api_types.PromptLLMCallLimitError(f"more than {PROMPTS_PER_RUN} prompts in one function")
        # Limited per function run, because a loop would spend the call's whole budget.
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
            raise api_types.ChatCompletionError(str(error)) from None
        return _parse_json(answer) if return_json else answer

    def get_secret(self, name: str) -> Any:
        return self._secrets.get(name)

    def validate_entity(self, value: object, config: object) -> EntityValidationResult:
        return validate_entity(value, config, self._clock.today())

    def extract_address(self, addresses: Iterable[object] | None = None, country: str = "US") -> api_types.Address:
        """Extract an address from the caller's last words: one of `addresses` where given. Raises `ExtractionError`."""
        choices = [str(address) for address in addresses or ()]
        return extract(self.prompt_llm, "the postal address", {"one of these addresses": choices}, country)

    def extract_city(
        self, city_spellings: Iterable[str] | None = None, states: Iterable[str] | None = None, country: str = "US"
    ) -> api_types.Address:
        """Extract city, state and country from the caller's last words. Raises `ExtractionError`."""
        hints = {"known cities": list(city_spellings or ()), "known states": list(states or ())}
        return extract(self.prompt_llm, "the city, and the state where it is said,", hints, country)


def _parse_json(answer: object) -> object:
    if not isinstance(answer, str):
        return answer
    fenced = _FENCE.match(answer)
    try:
        return json.loads(fenced[1] if fenced else answer)
    except ValueError:
        raise api_types.ChatCompletionError(f"the model's answer is not JSON: {answer[:200]!r}") from None
