"""The side of an inference process that all of them share."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from callagent.errors import UserError
from callagent.speech.local import wire

ENVIRONMENT = {
    # One request, one thread: more would fight each other for the processors.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent ends."""

Load = TypeVar("Load", bound=wire.Load)
Serve = Callable[[wire.Request], wire.Answer]


def run(expected: type[Load], load: Callable[[Load], Serve], threads: Callable[[Load], int]) -> None:
    """Serve the core on the socket whose number is the first argument, until it closes it."""
    _prepare()
    connection = socket.socket(fileno=int(sys.argv[1]))
    messages = wire.read_all(connection)
    settings = next(messages, None)
    if not isinstance(settings, expected):
        return
    try:
        serve = load(settings)
    except UserError as error:
        connection.sendall(wire.encode(wire.Failed(0, str(error), user=True)))
        return
    connection.sendall(wire.encode(wire.Ready()))
    sending = threading.Lock()

    def answer(request: wire.Request) -> None:
        try:
            reply = wire.encode(serve(request))
        except Exception as error:
            # The edge of one request: whatever an engine raises, the call that asked is told and the others go on.
            traceback.print_exc()
            reply = wire.encode(wire.Failed(request.number, f"{type(error).__name__}: {error}"))
        with sending:
            connection.sendall(reply)

    with ThreadPoolExecutor(threads(settings)) as pool:
        for message in messages:
            if isinstance(message, wire.Request):
                pool.submit(answer, message)


def _prepare() -> None:
    """Before anything heavy is imported, since the libraries read their variables then."""
    os.environ.update(ENVIRONMENT)
    # Sent to all processes of the server by a terminal or a service manager, they are the core's to handle: it drains
    # its calls, which need speech until the last one ends, and then closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
