"""The small model's own process: `python -I needle_process.py LIBRARY WEIGHTS SHA256`. Standard library only.

Requests and responses are lines of JSON. `{"number", "system", "tools"}` prepares a set of tools, `{"number", "text"}`
asks which of these tools a text asks for. A response has the number of its request and an "answer" or "error".
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path

_ANSWER_BYTES = 1 << 16
_MAX_TOKENS = 192
"""Limit of one answer."""


class Engine:
    """The native library of the small model, which holds one set of tools at a time."""

    def __init__(self, library: str, weights: str, sha256: str) -> None:
        data = Path(weights).read_bytes()
        # The very bytes that are loaded are checked, so the file cannot change in between.
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError(f"{weights} is not the file that callagent was tested with; install callagent[embedded]")
        self._library = ctypes.CDLL(library)
        self._library.needle_load.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        self._library.needle_init.argtypes = [ctypes.c_char_p] * 3
        self._library.needle_complete.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        # The library may keep pointers into the weights, so they must live as long as it does.
        self._weights = data
        self._answer = ctypes.create_string_buffer(_ANSWER_BYTES)
        if self._library.needle_load(self._weights, len(self._weights)) < 0:
            raise ValueError(f"{weights} cannot be loaded")

    def prepare(self, system: str, tools: str) -> None:
        if self._library.needle_init(system.encode(), tools.encode(), None) < 0:
            raise ValueError("the engine does not accept these tools")

    def complete(self, text: str) -> object:
        # The words of one caller must not be context for those of the next.
        self._library.needle_reset()
        if self._library.needle_complete(text.encode(), _MAX_TOKENS, self._answer, _ANSWER_BYTES) < 0:
            raise ValueError("the engine does not accept this text")
        return json.loads(self._answer.value)


def main(library: str, weights: str, sha256: str) -> None:
    # The library's own output goes to standard error: the parent kills a process that mixes other lines with answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    engine = Engine(library, weights, sha256)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer: dict[str, object] = {"number": request["number"]}
        try:
            if "tools" in request:
                engine.prepare(request["system"], request["tools"])
            else:
                answer["answer"] = engine.complete(request["text"])
        except ValueError as error:
            answer["error"] = str(error)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:4])
