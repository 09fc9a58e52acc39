"""Proxies as Debian ships them, in front of a server of ours, with configurations as their manuals begin with."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 768; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
"""
HAPROXY = """
defaults
    mode {mode}
    timeout connect 5000
    timeout client 50000
    timeout server 50000
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    server callagent 127.0.0.1:{upstream}
"""
STUNNEL = """
foreground = yes
pid =
cert = {folder}/server.pem
key = {folder}/server.key
[https]
accept = 127.0.0.1:{port}
connect = 127.0.0.1:{upstream}
"""


def _written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def _nginx(folder: Path, port: int, upstream: int) -> list[str]:
    text = NGINX.format(folder=folder, port=port, upstream=upstream)
    return ["nginx", "-p", str(folder), "-c", _written(folder, "nginx.conf", text)]


def _haproxy(mode: str) -> Callable[[Path, int, int], list[str]]:
    def command(folder: Path, port: int, upstream: int) -> list[str]:
        text = HAPROXY.format(mode=mode, port=port, upstream=upstream)
        return ["haproxy", "-db", "-f", _written(folder, "haproxy.cfg", text)]

    return command


def _socat(folder: Path, port: int, upstream: int) -> list[str]:
    return ["socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", f"TCP:127.0.0.1:{upstream}"]


def _stunnel(folder: Path, port: int, upstream: int) -> list[str]:
    make_certificate(folder)
    return ["stunnel", _written(folder, "stunnel.conf", STUNNEL.format(folder=folder, port=port, upstream=upstream))]


PROXIES: dict[str, Callable[[Path, int, int], list[str]]] = {
    "nginx": _nginx,
    "haproxy-http": _haproxy("http"),
    "haproxy-tcp": _haproxy("tcp"),
    "socat": _socat,
    "stunnel": _stunnel,
}


def is_here(name: str) -> bool:
    return shutil.which(name.partition("-")[0]) is not None


def make_certificate(folder: Path, name: str = "server", serial: int = 1) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-set_serial", str(serial), "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@asynccontextmanager
async def proxy(name: str, folder: Path, upstream: int) -> AsyncIterator[str]:
    """The URL of a proxy in front of that port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    folder.mkdir(exist_ok=True)
    command = PROXIES[name](folder, port, upstream)
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr, stderr=sys.stderr)
    try:
        async with asyncio.timeout(60):
            while not await _answers(port):
                assert process.returncode is None, f"{name} ended"
                await asyncio.sleep(0.05)
        yield f"{'https' if name == 'stunnel' else 'http'}://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
