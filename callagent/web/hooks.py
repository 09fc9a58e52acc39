"""What the HTTP side asks of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from callagent.agents.flows import Outside
from callagent.legs.bridge import Dial
from callagent.legs.leg import CallLeg


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """All are called on the event loop and return at once."""

    on_carrier_call: Callable[[CallLeg], None]
    """A verified call with its media stream, or one from our page; from here on the server owns and closes the leg."""
    admit: Callable[[], bool]
    """Whether one more call fits."""
    draining: Callable[[], bool]
    metrics: Callable[[], str]
    """Prometheus text."""
    outside: Outside = field(default_factory=Outside)
    """Where outside programs reach calls."""
    dial: Dial | None = None
    """Call the target of a transfer; None: SIP is off."""
