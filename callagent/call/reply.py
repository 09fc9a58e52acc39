"""The agent's replies as tasks: one at a time, each action handed to the call's inbox; the first while it rings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import cast

from callagent.agents import Action
from callagent.call.state import ANSWERING, Acted, AnswerDue, Event, ReplyDone
from callagent.errors import CallagentError
from callagent.log import get_logger

log = get_logger(__name__)


class Replies:
    """`number` is that of the reply that counts; actions of earlier ones come too late."""

    def __init__(self, put: Callable[[Acted | ReplyDone], None]) -> None:
        self.number = 0
        self._put = put
        self._task: asyncio.Task[None] | None = None

    def begin(self, actions: AsyncIterator[Action]) -> None:
        """Run a reply; it starts when the one before is over."""
        self.number += 1
        self._task = asyncio.create_task(self._run(self.number, actions, self._task))

    def cut(self) -> None:
        """The caller has the floor: what the reply still does counts no more."""
        self.number += 1
        if self._task and not self._task.done():
            self._task.cancel()

    async def stop(self, seconds: float) -> None:
        """End what runs, waiting for it no longer than that."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=seconds)
        # A task refers to the call by its context and by its result's traceback.
        self._task = None

    async def _run(self, number: int, actions: AsyncIterator[Action], former: asyncio.Task[None] | None) -> None:
        error: str | None = None
        try:
            if former and not former.done():
                former.cancel()
                await asyncio.wait({former})
            async for action in actions:
                self._put(Acted(number, action))
        except CallagentError as failure:
            log.error("reply_failed", error=str(failure))
            error = str(failure)
        except asyncio.CancelledError:
            # `cut` raises the number first: a reply that counts was cancelled from within, and nobody else will speak.
            error = "the reply was cancelled" if number == self.number else None
            raise
        except Exception as failure:
            # The edge of an agent's run: what nobody foresaw is a failure of the agent, never an answer of silence.
            log.exception("reply_failed", error=repr(failure))
            error = repr(failure)
        finally:
            try:
                await cast("AsyncGenerator[Action, None]", actions).aclose()
            except Exception as failure:
                # The same edge: an iterator that cannot be closed.
                log.exception("reply_not_closed", error=repr(failure))
                error = error or repr(failure)
            finally:
                self._put(ReplyDone(number, error))


async def opening(
    inbox: asyncio.Queue[Event], handle: Callable[[Event], None], over: Callable[[], bool]
) -> list[Acted | ReplyDone]:
    """What the start function does, until it is done or has had its time; other events are handled meanwhile."""
    backlog: list[Acted | ReplyDone] = []
    while not over():
        event = await inbox.get()
        if isinstance(event, Acted | ReplyDone):
            backlog.append(event)
            if isinstance(event, ReplyDone) or isinstance(event.action, ANSWERING):
                break
        elif isinstance(event, AnswerDue):
            break
        else:
            handle(event)
    return backlog
