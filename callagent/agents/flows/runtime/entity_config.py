"""Entity types and their validation as `conv.utils` offers them to project code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from typing import Any

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
    """Base of the configurations; by itself it accepts any text."""

    def check(self, text: str, today: date) -> Any:
        """Return the native value. Raises ValueError with a text for the model."""
        del today
        return text


@dataclass
class NumericConfig(EntityConfig):
    min_inclusive: float | None = None
    max_inclusive: float | None = None
    numeric_type: Any = None

    def check(self, text: str, today: date) -> Any:
        number = float(re.sub(r"[,\s$€£]", "", text))
        if self.min_inclusive is not None and number < self.min_inclusive:
            raise ValueError(f"must be at least {self.min_inclusive:g}")
        if self.max_inclusive is not None and number > self.max_inclusive:
            raise ValueError(f"must be at most {self.max_inclusive:g}")
        return self._native(number)

    def _native(self, number: float) -> float:
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

    def check(self, text: str, today: date) -> Any:
        match = re.fullmatch(self.custom_regex or ".+", text)
        if match is None:
            raise ValueError("does not have the expected form")
        return match[self.capturing_group] if self.capturing_group is not None else text


@dataclass
class EmailConfig(AlphanumericConfig):
    def check(self, text: str, today: date) -> Any:
        if not _EMAIL.fullmatch(text):
            raise ValueError("is not an e-mail address")
        return super().check(text, today)


@dataclass
class DateConfig(EntityConfig):
    day_first: bool | None = None
    earliest_date_inclusive: date | None = None
    latest_date_inclusive: date | None = None

    def check(self, text: str, today: date) -> Any:
        day = self._parse(text)
        if self.earliest_date_inclusive is not None and day < self.earliest_date_inclusive:
            raise ValueError(f"must not be before {self.earliest_date_inclusive}")
        if self.latest_date_inclusive is not None and day > self.latest_date_inclusive:
            raise ValueError(f"must not be after {self.latest_date_inclusive}")
        return day

    def _parse(self, text: str) -> date:
        spoken = ("%d/%m/%Y", "%d.%m.%Y") if self.day_first else ("%m/%d/%Y", "%m.%d.%Y")
        for form in ("%Y-%m-%d", *spoken, "%d %B %Y", "%B %d %Y", "%B %d, %Y"):
            try:
                return datetime.strptime(text, form).date()
            except ValueError:
                continue
        raise ValueError("is not a date such as 2025-12-31")


@dataclass
class TimeConfig(EntityConfig):
    format: str | None = None
    earliest_time_inclusive: Any = None
    latest_time_inclusive: Any = None
    time_pivot: Any = None

    def check(self, text: str, today: date) -> Any:
        for form in filter(None, (self.format, "%H:%M", "%H:%M:%S", "%I:%M %p", "%I %p", "%I%p")):
            try:
                time = datetime.strptime(text.upper().replace(".", ""), form).time()
            except ValueError:
                continue
            earliest, latest = self.earliest_time_inclusive, self.latest_time_inclusive
            if (earliest is not None and time < earliest) or (latest is not None and time > latest):
                raise ValueError("is outside of the times allowed")
            return time
        raise ValueError("is not a time such as 17:30")


@dataclass
class PhoneNumberConfig(EntityConfig):
    regions: set[str] = field(default_factory=set)

    def check(self, text: str, today: date) -> Any:
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

    def check(self, text: str, today: date) -> Any:
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
    details: Any = None

    @property
    def is_valid(self) -> bool:
        return self.valid

    @property
    def message(self) -> str | None:
        return self.error

    def __str__(self) -> str:
        return "" if self.value is None else str(self.value)


def validate_entity(value: Any, config: Any, today: date) -> EntityValidationResult:
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
