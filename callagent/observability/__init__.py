"""What others see of the calls: Prometheus metrics and OpenTelemetry traces."""

from __future__ import annotations

from callagent.observability.prometheus import Counter, Metrics, provider_metrics
from callagent.observability.telemetry import Telemetry

__all__ = ["Counter", "Metrics", "Telemetry", "provider_metrics"]
