"""What a caller's English words mean, by rules: numbers, dates, times, yes and no, keywords. Pure functions."""

from __future__ import annotations

from callagent.models.understanding.dates import find_date, find_part_of_day, find_time, part_of_day
from callagent.models.understanding.keywords import Keywords, content_words
from callagent.models.understanding.names import find_email, find_name, find_spelling
from callagent.models.understanding.numbers import find_digits, find_money, find_number
from callagent.models.understanding.yes_no import Answer, find_answer, is_repeat_request

__all__ = [
    "Answer",
    "Keywords",
    "content_words",
    "find_answer",
    "find_date",
    "find_digits",
    "find_email",
    "find_money",
    "find_name",
    "find_number",
    "find_part_of_day",
    "find_spelling",
    "find_time",
    "is_repeat_request",
    "part_of_day",
]
