"""Providers of language models behind a network. Each provider is one file, which declares itself in `DECLARATION`.

A declaration is all that settings, messages and documentation know of a provider: a new one is a new file here. Reading
the declarations imports every provider's file, so these import aiohttp only when the first request is sent.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from callagent.models.protocol import Declaration

__all__ = ["declarations"]


@cache
def declarations() -> Mapping[str, Declaration]:
    """Return what the providers of this folder declare, by name and in the order of the names."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    found: list[Declaration] = [import_module(f"{__name__}.{name}").DECLARATION for name in names]
    return MappingProxyType({one.name: one for one in found})
