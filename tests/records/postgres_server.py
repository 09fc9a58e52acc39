"""A PostgreSQL of the test's own, as a user that is not root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.baresip import free_port


def binaries() -> Path | None:
    """Where the newest PostgreSQL of this machine is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


class PostgresServer:
    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._port = port
        self.url = f"postgresql://callagent@127.0.0.1:{port}/postgres"

    def create(self) -> None:
        self._run("initdb", "-D", str(self._data), "-U", "callagent", "--auth=trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder}"
        self._run(
            "pg_ctl", "-D", str(self._data), "-o", options, "-l", str(self._folder / "log"), "-w", "-t", "150", "start"
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        folder = binaries()
        assert folder is not None
        command = [str(folder / program), *arguments]
        if os.getuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        # Its output goes nowhere: a server that outlives pg_ctl would hold a pipe open.
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=self._folder, timeout=180,
        )  # fmt: skip


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    # Not below pytest's folder, which belongs to whoever runs the tests.
    folder = Path(tempfile.mkdtemp(prefix="callagent-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    server = PostgresServer(folder, free_port(socket.SOCK_STREAM))
    try:
        server.create()
        server.start()
        yield server
    finally:
        try:
            server.stop()
        except subprocess.CalledProcessError:
            pass
        shutil.rmtree(folder, ignore_errors=True)
