"""The performance figures of a machine, measured from outside of the server; a module for each benchmark."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.bench.accuracy import bench_models, bench_speech
    from callagent.bench.calls import bench_calls
    from callagent.bench.conversation import bench_conversation
    from callagent.bench.engine import bench_engine
    from callagent.bench.media import bench_media
    from callagent.bench.signalling import bench_signalling

_MODULES = {
    "bench_calls": "calls",
    "bench_conversation": "conversation",
    "bench_engine": "engine",
    "bench_media": "media",
    "bench_models": "accuracy",
    "bench_signalling": "signalling",
    "bench_speech": "accuracy",
}

__all__ = [
    "bench_calls",
    "bench_conversation",
    "bench_engine",
    "bench_media",
    "bench_models",
    "bench_signalling",
    "bench_speech",
]
__getattr__ = lazy_exports(__name__, _MODULES)
