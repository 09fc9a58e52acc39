"""Rules for names: of files, of tools that a model may call, of secrets."""

from __future__ import annotations

import re

SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A secret's name is the name of its file: no separator, no leading dot."""


def clean_name(name: str) -> str:
    """The file or folder name of an object: lower case, words joined by `_`."""
    words = re.sub(r"[^\w\s]", " ", name.lower())
    return re.sub(r"_+", "_", re.sub(r"\s+", "_", words)).strip("_")


def tool_name(prefix: str, name: str) -> str:
    """A name that every provider of language models takes: `[A-Za-z0-9_-]`, at most 64 characters."""
    ascii_only = re.sub(r"[^A-Za-z0-9_-]+", "_", clean_name(name)).strip("_")
    return f"{prefix}_{ascii_only}"[:64]
