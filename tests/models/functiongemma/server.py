"""Completion servers on loopback, in the dialect of each engine; they say what a test gives them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PATHS = {"llamacpp": "/completion", "ollama": "/api/generate", "vllm": "/v1/completions"}
HANG = "hang"
"""A piece: from here on the server is silent."""
CUT = "cut"
"""A piece: the connection is gone."""


class CompletionServer:
    """One answer per request, in pieces; keeps what it was asked."""

    def __init__(self, dialect: str, *answers: list[str] | str | web.Response) -> None:
        self.dialect = dialect
        self.answers = deque(answers)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.client_left = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CompletionServer]:
        app = web.Application()
        app.router.add_post(PATHS[self.dialect], self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.answers.popleft()
        if isinstance(answer, web.Response):
            return answer
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            for event in self._events([answer] if isinstance(answer, str) else answer):
                if event == HANG:
                    await asyncio.sleep(60)
                if event == CUT:
                    assert request.transport
                    request.transport.abort()
                await response.write(event.encode())
        except (ConnectionError, asyncio.CancelledError):
            self.client_left.set()
            raise
        return response

    def _events(self, pieces: list[str]) -> Iterator[str]:
        for piece in pieces:
            if piece in (HANG, CUT):
                yield piece
            else:
                yield self._event(piece, last=False)
        yield self._event("", last=True)
        if self.dialect == "vllm":
            yield f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': 7, 'completion_tokens': 3}})}\n\n"
            yield "data: [DONE]\n\n"

    def _event(self, text: str, *, last: bool) -> str:
        match self.dialect:
            case "llamacpp":
                end = {"stop_type": "word", "tokens_evaluated": 7, "tokens_predicted": 3} if last else {}
                return f"data: {json.dumps({'index': 0, 'content': text, 'stop': last, **end})}\n\n"
            case "ollama":
                end = {"done_reason": "stop", "prompt_eval_count": 7, "eval_count": 3} if last else {}
                return json.dumps({"model": "m", "response": text, "done": last, **end}) + "\n"
            case _:
                choice = {"index": 0, "text": text, "finish_reason": "stop" if last else None}
                return f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\n\n"
