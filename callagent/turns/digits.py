"""Collecting key presses into one answer."""

from __future__ import annotations

from callagent.agents import DigitSettings

MOST_DIGITS = 64
"""Bound where the agent set none."""


class DigitCollector:
    """The keys of one turn. Its times are run by the floor."""

    def __init__(self, settings: DigitSettings) -> None:
        self.settings = settings
        self.digits = ""

    def press(self, digit: str) -> bool:
        """Take one key; True: the digits are complete."""
        if self.settings.end_key and digit == self.settings.end_key:
            if not self.digits and self.settings.end_key_alone:
                self.digits = digit
            return True
        self.digits += digit
        return len(self.digits) >= (self.settings.max_digits or MOST_DIGITS)

    def wants(self, digit: str) -> bool:
        """Whether the key is to be pressed."""
        return bool(self.digits) or digit != self.settings.end_key or self.settings.end_key_alone
