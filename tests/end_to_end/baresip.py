"""baresip, headless: plays a WAV file as its microphone, records what it hears, obeys over its control socket."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BARESIP = shutil.which("baresip")
MODULES = next((str(path) for path in Path("/usr/lib").glob("**/baresip/modules")), "/usr/lib/baresip/modules")
START_SECONDS = 60.0
"""Until a peer listens, on a machine with other work to do."""

_CONFIG = """\
poll_method epoll
sip_listen 127.0.0.1:{sip}
{certificate}
call_local_timeout 120
call_max_calls 10
audio_player aubridge,out{sip}
audio_source aufile,{microphone}
audio_alert aubridge,alert{sip}
ausrc_srate {rate}
auplay_srate {rate}
ausrc_channels 1
auplay_channels 1
audio_level no
ausrc_format s16
auplay_format s16
auenc_format s16
audec_format s16
audio_buffer 20-160
rtp_ports 10000-19998
rtcp_mux {mux}
jitter_buffer_delay 2-10
net_interface 127.0.0.1
module_path {modules}
module g711.so
module g722.so
module opus.so
module srtp.so
module aufile.so
module aubridge.so
module sndfile.so
module_tmp uuid.so
module_tmp account.so
module_app menu.so
module_app ctrl_tcp.so
module_app debug_cmd.so
ctrl_tcp_listen 127.0.0.1:{control}
snd_path {recordings}
menu_bell no
"""
_ACCOUNT = (
    "<sip:user@127.0.0.1:{sip};transport={transport}>;regint=0;answermode=auto;"
    "audio_codecs={codecs};ptime={ptime}{more}\n"
)


class Baresip:
    """A running phone; `events` grows as things happen."""

    def __init__(self, process: subprocess.Popen[bytes], sip: int, control: int, recordings: Path) -> None:
        self.process = process
        self.sip_port = sip
        self.recordings = recordings
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._socket = _connect(control)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def command(self, name: str, parameters: str = "") -> None:
        text = json.dumps({"command": name, "params": parameters, "token": name}).encode()
        self._socket.sendall(b"%d:%s," % (len(text), text))

    def digits(self) -> str:
        """The keys that were pressed at the other end."""
        return "".join(event["param"] for event in self.events if event.get("type") == "CALL_DTMF_START")

    def wait_for(self, kind: str, seconds: float = 60.0) -> dict[str, Any]:
        """The first event of this type (`CALL_ESTABLISHED`, `CALL_CLOSED`, `TRANSFER` …)."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.events if event.get("type") == kind), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, seconds)
            event = found()
        assert event is not None, f"no {kind} within {seconds} s: {[one.get('type') for one in self.events]}"
        return event

    def heard(self) -> list[Path]:
        """The recordings of what the phone heard, oldest first."""
        return sorted(self.recordings.glob("*dec.wav"), key=lambda path: path.stat().st_mtime)

    def close(self) -> None:
        self._socket.close()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                return
            if not data:
                return
            buffer += data
            while b":" in buffer:
                length, _, rest = buffer.partition(b":")
                if len(rest) < int(length) + 1:
                    break
                message = json.loads(rest[: int(length)])
                buffer = rest[int(length) + 1 :]
                with self._changed:
                    if message.get("event"):
                        self.events.append(message)
                    self._changed.notify_all()


@contextmanager
def baresip(
    folder: Path,
    microphone: Path,
    *,
    codecs: str = "PCMU/8000/1,PCMA/8000/1",
    rate: int = 8000,
    more: str = "",
    mux: bool = False,
    ptime: int = 20,
    transport: str = "udp",
    certificate: Path | None = None,
) -> Iterator[Baresip]:
    """A phone that plays `microphone` (mono WAV of `rate` Hz) in every call and records beside it.

    `more` are further account parameters, such as `;mediaenc=srtp-mand`; `certificate`, with its key, is for TLS.
    """
    assert BARESIP, "baresip is not installed"
    # SIP over every transport: TLS is one above the others.
    sip, control = free_port(socket.SOCK_DGRAM, socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    recordings = folder / "recordings"
    recordings.mkdir(parents=True)
    # It cuts the path of a recording at 127 characters.
    places = {"microphone": microphone, "recordings": recordings.name, "modules": MODULES}
    shown = f"sip_certificate {certificate}" if certificate is not None else ""
    text = _CONFIG.format(sip=sip, control=control, rate=rate, mux="yes" if mux else "no", certificate=shown, **places)
    (folder / "config").write_text(text)
    (folder / "accounts").write_text(
        _ACCOUNT.format(sip=sip, codecs=codecs, ptime=ptime, more=more, transport=transport)
    )
    (folder / "contacts").write_text("")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [BARESIP, "-f", str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )
    try:
        phone = Baresip(process, sip, control, recordings)
    except OSError:
        process.kill()
        process.wait()
        raise
    try:
        yield phone
    finally:
        phone.close()


def free_port(kind: int, *others: int) -> int:
    """A port that nobody has, nor the one above it, for these kinds of socket.

    Not from the system's own range: between the look and the use somebody else's connection would take it.
    """
    while True:
        port = random.randrange(28000, 32760, 2)
        if all(is_free(each, number) for each in (kind, *others) for number in (port, port + 1)):
            return port


def is_free(kind: int, port: int) -> bool:
    """Whether nobody has the port on loopback. For a moment we have it: nobody may be about to take it."""
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_open(kind: int, port: int) -> bool:
    """Whether somebody listens at the port (TCP) or has it (UDP). Looks without touching it."""
    table, listening = ("tcp", "0A") if kind == socket.SOCK_STREAM else ("udp", "07")
    sockets = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return any(int(local.rpartition(":")[2], 16) == port and state == listening for _, local, _, state, *_ in sockets)


def _connect(port: int) -> socket.socket:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
