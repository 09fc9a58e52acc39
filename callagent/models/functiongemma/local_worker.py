"""The process that runs the weights: `python -m callagent.models.functiongemma.local_worker KIND PATH`.

It reads requests and `{"cancel": number}` as lines of JSON. It writes `{"ready"}`, then for each request several
`{"text"}` and `{"done": [prompt tokens, answer tokens]}` or `{"error"}`, and nothing else, to standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import TypedDict


class Request(TypedDict):
    """A text to continue, as `engines` sends it."""

    number: int
    prompt: str
    stops: list[str]
    max_tokens: int
    temperature: float
    grammar: str


Generate = Callable[[Request], Generator[str, None, None]]
"""Yields the continuation piece by piece; closing the generator stops it."""
Count = Callable[[str], int]
"""Counts the tokens of a text."""

_CONTEXT_TOKENS = 4096
"""Longest prompt with its answer."""
_MAX_WAITING = 16
"""Requests that are read before they can be answered."""


def _open_gguf(path: str) -> tuple[Generate, Count]:
    llama_cpp = importlib.import_module("llama_cpp")

    model = llama_cpp.Llama(model_path=path, n_ctx=_CONTEXT_TOKENS, verbose=False)

    def count(text: str) -> int:
        return len(model.tokenize(text.encode(), add_bos=True, special=True))

    def generate(request: Request) -> Generator[str, None, None]:
        # Tokens are generated one by one, because `create_completion` leaves the control tokens out of the text.
        grammar = llama_cpp.LlamaGrammar.from_string(request["grammar"], verbose=False) if request["grammar"] else None
        tokens = model.tokenize(request["prompt"].encode(), add_bos=True, special=True)
        generated = model.generate(tokens, temp=request["temperature"], grammar=grammar)
        pending = b""
        for number, token in enumerate(generated, 1):
            # The token that ends a text is not part of it.
            if token == model.token_eos():
                return
            # A character of several bytes may be cut between two tokens, so its bytes wait for the rest.
            pending += model.detokenize([token], special=True)
            text, pending = _whole_characters(pending)
            yield text
            if number >= request["max_tokens"]:
                return

    return generate, count


def _open_transformers(path: str) -> tuple[Generate, Count]:
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, local_files_only=True)

    def count(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    def generate(request: Request) -> Generator[str, None, None]:
        cancelled = threading.Event()
        streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=False)
        sampling = {"do_sample": True, "temperature": request["temperature"]} if request["temperature"] else {}
        settings = {
            **tokenizer(request["prompt"], return_tensors="pt"),
            "max_new_tokens": request["max_tokens"],
            "streamer": streamer,
            "stopping_criteria": transformers.StoppingCriteriaList([lambda *_, **__: cancelled.is_set()]),
            **({"do_sample": False} | sampling),
        }

        def run() -> None:
            try:
                with torch.inference_mode():
                    model.generate(**settings)
            finally:
                streamer.end()

        # `generate` blocks, and the streamer hands its texts over from the thread that it runs on.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield from streamer
        finally:
            cancelled.set()
            thread.join()

    return generate, count


_OPENERS = {"gguf": _open_gguf, "transformers": _open_transformers}


class Worker:
    """Answers requests one after the other; a cancellation takes effect between two tokens."""

    def __init__(self, generate: Generate, count: Count, write: Callable[[Mapping[str, object]], None]) -> None:
        self._generate = generate
        self._count = count
        self._write = write
        self._cancelled = 0

    def cancel(self, number: int) -> None:
        """Stop the answer to a request; called from the thread that reads."""
        self._cancelled = number

    def answer(self, request: Request) -> None:
        """Write the continuation of a request's prompt."""
        written = ""
        with closing(self._generate(request)) as texts:
            for text in texts:
                if self._cancelled == request["number"]:
                    break
                written += text
                if text:
                    self._write({"text": text})
                # A stop may come in two pieces, so the search begins as far before this piece as the stop is long.
                if any(stop in written[-len(text) - len(stop) :] for stop in request["stops"]):
                    break
        self._write({"done": [self._count(request["prompt"]), self._count(written)]})


def _whole_characters(data: bytes) -> tuple[str, bytes]:
    """Return the text of the data, and the bytes of an incomplete last character."""
    # A character of UTF-8 has at most four bytes (RFC 3629), so at most three of them can be left over.
    for cut in range(min(4, len(data) + 1)):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


def _read_requests(worker: Worker, requests: queue.Queue[Request]) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "cancel" in message:
            worker.cancel(message["cancel"])
        else:
            requests.put(message)
    # The parent has closed the pipe, so nobody waits for a running answer.
    os._exit(0)


def main(kind: str, path: str) -> None:
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # What the libraries print goes to standard error, so that it does not mix with the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(message: Mapping[str, object]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    generate, count = _OPENERS[kind](path)
    worker = Worker(generate, count, write)
    requests: queue.Queue[Request] = queue.Queue(_MAX_WAITING)
    threading.Thread(target=_read_requests, args=(worker, requests), daemon=True).start()
    write({"ready": True})
    while True:
        request = requests.get()
        try:
            worker.answer(request)
        except Exception as error:  # the next request must still be answered
            write({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(*sys.argv[1:3])
