"""A limit for code that is run before any call: where it was when the time was over is where it hangs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTime(BaseException):
    """Not an Exception: code that catches those does not go on."""


_STUBBORN = 3
"""Code that catches `OutOfTime` so often is left no more time, nor its process."""


@contextmanager
def time_limit(file: str, seconds: float, on_over: Callable[[int], None]) -> Iterator[None]:
    """Raises `OutOfTime` in the code, and again where the code holds it; then the process ends.

    `on_over` is told the line of the file. Without effect outside of a main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    left = _STUBBORN

    def over(number: int, frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        on_over(_line(file, frame))
        if not left:
            os._exit(1)
        raise OutOfTime(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _line(file: str, frame: FrameType | None) -> int:
    """Of the file's own code, whatever it has called."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 1
