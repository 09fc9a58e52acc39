"""What functions of a project write down for a test. They may write no file of the test's, so they send lines to it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOTE = """\
def note(*words):
    import socket

    with socket.create_connection(("127.0.0.1", {port}), 60) as journal:
        journal.sendall((" ".join(str(word) for word in words) + "\\n").encode())
        assert journal.recv(1)
"""
"""Code of a function; returns when the line is written down."""


@contextmanager
def journal(folder: Path) -> Iterator[int]:
    """Lines go to the file `journal` in `folder`; the port that functions send them to."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            with (folder / "journal").open("ab") as file:
                file.write(line)
            self.wfile.write(b"1")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.request_queue_size = 128
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def let_functions_note(folder: Path, port: int, more: str = "") -> tuple[str, str]:
    """Arguments of a server whose functions may send lines there; `more`: further settings, as TOML."""
    file = folder / "callagent.toml"
    file.write_text(f"[limits]\nfunction_network = [{port}]\n{more}")
    return "--config", str(file)


def lines(folder: Path) -> list[list[str]]:
    """The words of each line that is whole."""
    file = folder / "journal"
    text = file.read_text() if file.exists() else ""
    return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
