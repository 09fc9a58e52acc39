"""Prometheus metrics and OpenTelemetry traces of the calls.

Importing this package is light: each of its modules is imported when one of its names is first used.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.observability.prometheus import Metrics, provider_metrics
    from callagent.observability.telemetry import Telemetry

_MODULES = {
    "Metrics": "prometheus",
    "Telemetry": "telemetry",
    "provider_metrics": "prometheus",
}

__all__ = [
    "Metrics",
    "Telemetry",
    "provider_metrics",
]
__getattr__ = lazy_exports(__name__, _MODULES)
