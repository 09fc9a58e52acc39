"""Small runtimes for tests: what a worker can be asked to do, without a flow project."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callagent.workers.protocol import AskFailed, Channel, Plain


class EchoSession:
    def __init__(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel, version: str) -> None:
        self.context = context
        self.kept = {key: value.decode() for key, value in checkpoint.items()}
        self.channel = channel
        self.version = version

    def handle(self, request: Plain) -> Plain:
        operation = getattr(self, "do_" + request["op"])
        answer: Plain = operation(**{key: value for key, value in request.items() if key != "op"})
        return answer

    def do_echo(self, value: Any) -> Plain:
        return {"value": value, "context": self.context, "pid": os.getpid(), "version": self.version}

    def do_keep(self, key: str, value: str | None) -> Plain:
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = value
        return {"checkpoint": {key: None if value is None else value.encode()}}

    def do_kept(self) -> Plain:
        return {"kept": self.kept}

    def do_ask(self, question: str, times: int = 1) -> Plain:
        answers = []
        for number in range(times):
            self.channel.send({"type": "note", "number": number})
            try:
                answers.append(self.channel.ask({"type": "ask", "question": question, "ask": True}))
            except AskFailed as error:
                answers.append(f"failed: {error}")
        return {"answers": answers}

    def do_ask_from_threads(self, count: int) -> Plain:
        answers: dict[str, Any] = {}

        def ask(number: int) -> None:
            answers[str(number)] = self.channel.ask({"type": "ask", "question": str(number), "ask": True})

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"answers": answers}

    def do_sleep(self, seconds: float) -> Plain:
        time.sleep(seconds)
        return {"slept": seconds}

    def do_raise(self) -> Plain:
        raise ValueError("from the session")

    def do_exit(self) -> Plain:
        os._exit(7)

    def do_exit_later(self, seconds: float) -> Plain:
        threading.Timer(seconds, os._exit, (7,)).start()
        return {}

    def do_large(self, size: int) -> Plain:
        return {"value": b"x" * size}

    def do_limits(self) -> Plain:
        import resource

        return {"data": resource.getrlimit(resource.RLIMIT_DATA)[0], "nice": os.nice(0), "group": os.getpgid(0)}


class Echo:
    def __init__(self, project: Path) -> None:
        version = project / "version"
        self.version = version.read_text() if version.exists() else ""
        if self.version == "broken":
            raise ValueError("this version is broken")

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> EchoSession:
        return EchoSession(context, checkpoint, channel, self.version)


class Threaded(Echo):
    """Its import leaves a thread behind: it must not be forked."""

    def __init__(self, project: Path) -> None:
        super().__init__(project)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class Endless:
    def __init__(self, project: Path) -> None:
        time.sleep(600)


class Exiting:
    def __init__(self, project: Path) -> None:
        os._exit(9)


class Unopenable(Echo):
    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> EchoSession:
        raise ValueError("no session")
