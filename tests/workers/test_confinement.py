"""What project code can open, write, start and connect to: the kernel holds it, and nothing else is in the way."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import socket
import sqlite3
import ssl
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callagent.config import Config, closed_paths, override
from callagent.errors import ConfigError, WorkerDied
from callagent.models import open_model
from callagent.server.local_server import LocalServer
from callagent.server.projects import flow_settings, open_project, worker_settings
from callagent.workers.confinement import common_grants, confinement_gaps, find_programs, open_parts
from callagent.workers.kernel_limits import describe_gaps, has_socket_filter, landlock_version
from callagent.workers.private_folder import PrivateFolders, remove_abandoned, remove_tree
from callagent.workers.process_pool import ProcessPool
from callagent.workers.protocol import MIB, ProjectRuntime, WorkerSettings
from tests.workers.support import call

needs_landlock = pytest.mark.skipif(landlock_version() < 1, reason="the kernel has no Landlock")
needs_ports = pytest.mark.skipif(landlock_version() < 4, reason="the kernel's Landlock does not hold TCP (ABI 4)")
PROJECTS = Path(__file__).parent.parent / "projects"
FLOW_RUNTIME = "callagent.agents.flows.runtime:FlowRuntime"
Try = Callable[..., Any]


def project_with(root: Path, **functions: str) -> Path:
    """A project; each function's body is given."""
    for name, body in functions.items():
        file = root / "functions" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"from _gen import *\n\ndef {name}(conv: Conversation):\n{textwrap.indent(body, '    ')}\n")
    return root


async def outcome(root: Path, body: str, settings: WorkerSettings | None = None) -> str:
    """What a function with this body comes to: its value, or its error's type."""
    answer = await answer_of(root, body, settings)
    return str(answer["error"]["type"] if answer["error"] else answer["returned"])


async def answer_of(root: Path, body: str, settings: WorkerSettings | None = None) -> Any:
    pool = ProcessPool(ProjectRuntime(FLOW_RUNTIME, project_with(root, tried=body)), settings)
    try:
        return await call(await pool.lease({}), "tried", timeout=30.0)
    finally:
        await pool.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Config]:
    """A folder that is both the server's and the project's, as the example is served: records, settings, recordings."""
    root = project_with(tmp_path / "all", none="pass")
    monkeypatch.chdir(root)
    (root / "var" / "recordings").mkdir(parents=True)
    (root / "callagent.toml").write_text("# settings\n")
    (root / "own.toml").write_text("# settings by another name\n")
    (root / ".env").write_text("OPENAI_API_KEY=hush\n")
    (root / "var" / "recordings" / "call.wav").write_bytes(b"RIFF")
    (root / "secrets").mkdir()
    (root / "secrets" / "booking").write_text("hush")
    (root / "data.csv").write_text("a,b\n")
    with contextlib.closing(sqlite3.connect(root / "var" / "callagent.db")) as database:
        database.execute("create table calls (id)")
        database.commit()
    config = override(Config(), {"records.path": "var/callagent.db", "records.recordings": "var/recordings"})
    config = config.model_copy(update={"function_secrets": "secrets"}).with_file(str(root / "own.toml"))
    return root, config


CLOSED = {
    "reads the records": "open('var/callagent.db', 'rb').read()",
    "writes to the records": "open('var/callagent.db', 'r+b').write(b'x')",
    "removes the records": "import os\nos.remove('var/callagent.db')",
    "replaces the records": "import os\nos.replace('data.csv', 'var/callagent.db')",
    "makes a journal": "open('var/callagent.db-wal', 'wb')",
    "lists the recordings": "import os\nos.listdir('var/recordings')",
    "reads a recording": "open('var/recordings/call.wav', 'rb')",
    "reads the settings": "open('callagent.toml')",
    "reads settings by another name": "open('own.toml')",
    "reads the environment file": "open('.env')",
    "reads a secret's file": "open('secrets/booking')",
    "writes to its own project": "open('functions/tried.py', 'a')",
    "makes a file in its project": "open('new.txt', 'w')",
    "writes to the system": "open('/usr/lib/new', 'w')",
    "reads the passwords": "open('/etc/shadow')",
    "reads its parent's environment": "import os\nopen(f'/proc/{os.getppid()}/environ', 'rb')",
    "starts a program": "import subprocess\nsubprocess.run(['/bin/true'])",
    "starts a shell": "import os\nos.execv('/bin/sh', ['sh', '-c', 'true'])",
    "starts Python": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'])",
    "executes what it wrote": (
        "import os, tempfile\n"
        "file = tempfile.mkdtemp() + '/program'\n"
        "open(file, 'w').write('#!/bin/true')\n"
        "os.chmod(file, 0o700)\n"
        "os.execv(file, [file])"
    ),
}
OPEN = {
    "reads its own files": ("return open('data.csv').read()", "a,b\n"),
    "reads its own code": ("return open(__file__).read()[:4]", "from"),
    "writes a temporary file": ("import tempfile\nwith tempfile.NamedTemporaryFile() as file:\n    file.write(b'x')\n"
                                "return tempfile.gettempdir() == __import__('os').environ['TMPDIR']", "True"),
    "moves and removes": ("import os, shutil, tempfile\na = tempfile.mkdtemp()\nb = tempfile.mkdtemp()\n"
                          "open(a + '/x', 'w').close()\nos.rename(a + '/x', b + '/x')\nshutil.rmtree(b)\n"
                          "return os.path.exists(b)", "False"),
    "has a home": ("from pathlib import Path\n(Path.home() / '.x').write_text('y')\n"
                   "return (Path.home() / '.x').read_text()", "y"),
    "has random numbers": ("return len(open('/dev/urandom', 'rb').read(4))", "4"),
    "has nothing": ("open('/dev/null', 'w').write('x')\nreturn open('/dev/null').read() == ''", "True"),
    "knows time zones": ("import datetime, zoneinfo\n"
                         "return str(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')))[-6:]",
                         "+02:00"),
    "knows authorities": ("import ssl\nreturn bool(ssl.create_default_context().get_ca_certs()) or True", "True"),
    "imports libraries": ("import json, sqlite3, xml.dom.minidom, msgspec, requests, yaml\nreturn 'imported'",
                          "imported"),
    "sees itself": ("import os\nreturn 'Name' in open('/proc/self/status').read() and os.cpu_count() > 0", "True"),
    "resolves names": ("import socket\nreturn socket.getaddrinfo('localhost', 80)[0][4][1]", "80"),
}  # fmt: skip


@needs_landlock
@pytest.mark.parametrize("name", CLOSED)
async def test_what_is_not_the_projects_is_refused(name: str, server: tuple[Path, Config]) -> None:
    root, config = server
    before = (root / "var" / "callagent.db").read_bytes()
    assert await outcome(root, CLOSED[name], worker_settings(config, root)) == "PermissionError"
    assert (root / "var" / "callagent.db").read_bytes() == before


@pytest.mark.parametrize("name", OPEN)
async def test_what_a_project_needs_goes_on_working(name: str, server: tuple[Path, Config]) -> None:
    root, config = server
    body, value = OPEN[name]
    assert await outcome(root, body, worker_settings(config, root)) == value


@needs_landlock
async def test_importing_a_project_is_confined_like_its_functions(server: tuple[Path, Config]) -> None:
    root, config = server
    (root / "functions" / "tried.py").write_text(
        "from _gen import *\nfrom pathlib import Path\n\n"
        "try:\n    found = Path('var/callagent.db').read_bytes()\nexcept OSError as error:\n    found = error\n"
        "Path(__import__('tempfile').gettempdir(), 'x').write_text('x')\n\n"
        "def tried(conv: Conversation):\n    return type(found).__name__\n"
    )
    pool = ProcessPool(ProjectRuntime(FLOW_RUNTIME, root), worker_settings(config, root))
    try:
        answer = await call(await pool.lease({}), "tried")
    finally:
        await pool.close()
    assert answer["returned"] == "PermissionError"


REFUSED = {
    "writes a file": "open('cache.json', 'w')",
    "starts a program": "import subprocess\nsubprocess.run(['ls'])",
    "wraps the error": "try:\n    open('x', 'w')\nexcept OSError as error:\n    raise ValueError(1) from error",
    "has it in words": "raise RuntimeError('connection to server at \"db\", port 5432 failed: Permission denied')",
}  # fmt: skip


@needs_landlock
@pytest.mark.parametrize("name", REFUSED)
async def test_who_reads_the_log_is_told_what_to_set(name: str, tmp_path: Path) -> None:
    """The model, which is told the message, is not."""
    error = (await answer_of(tmp_path, REFUSED[name], WorkerSettings(ports=(443,))))["error"]
    assert "limits.function_network" in error["traceback"]
    assert "limits." not in error["message"]


async def test_other_errors_are_told_as_they_are(tmp_path: Path) -> None:
    assert "limits." not in (await answer_of(tmp_path, "open('missing.json')"))["error"]["traceback"]


@needs_landlock
async def test_an_import_that_is_refused_is_told_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "tried.py").write_text("open('cache.json', 'w')\n")
    pool = ProcessPool(ProjectRuntime(FLOW_RUNTIME, tmp_path), WorkerSettings())
    try:
        described = await (await pool.lease({})).run({"op": "describe"}, timeout=30, on_message=lambda message: None)
    finally:
        await pool.close()
    assert "tempfile.gettempdir()" in str(described)


@needs_landlock
async def test_calls_do_not_see_each_others_folders(tmp_path: Path) -> None:
    write = "import tempfile\nfile = tempfile.mkstemp()[1]\nopen(file, 'w').write('mine')\nreturn file"
    read = "import sys\nreturn open(conv.state.file).read()"
    root = project_with(tmp_path, write=write, read=f"conv.state.file = conv.sip_headers['file']\n{read}")
    pool = ProcessPool(ProjectRuntime(FLOW_RUNTIME, root))
    one, other = await pool.lease({}), await pool.lease({})
    try:
        file = (await call(one, "write"))["returned"]
        request = {"op": "run", "function": {"kind": "global", "flow": None, "name": "read"}, "arguments": {},
                   "conv": {"id": "c", "sip_headers": {"file": file}}}  # fmt: skip
        own = await one.run(request, timeout=10, on_message=lambda message: None)
        theirs = await other.run(request, timeout=10, on_message=lambda message: None)
        folder = Path(file).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert own["returned"] == "mine"
        assert theirs["error"]["type"] == "PermissionError"
        await one.close()
        assert not folder.exists()
    finally:
        await pool.close()
    assert not folder.parent.exists()


# The network ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', {port}), 5).close()\nreturn 'connected'"
MULTIPATH = (
    "import socket\nwith socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as one:\n"
    "    one.connect(('127.0.0.1', {port}))\nreturn 'connected'"
)


@needs_ports
async def test_a_port_that_the_settings_do_not_list_is_refused(tmp_path: Path) -> None:
    with listener() as port, listener() as other:
        settings = WorkerSettings(ports=(port,))
        assert await outcome(tmp_path, CONNECT.format(port=port), settings) == "connected"
        assert await outcome(tmp_path, CONNECT.format(port=other), settings) == "PermissionError"


@needs_ports
@pytest.mark.skipif(not has_socket_filter(), reason="the filter for sockets does not know this machine's system calls")
async def test_multipath_tcp_leads_nowhere_either(tmp_path: Path) -> None:
    with listener() as port:
        assert await outcome(tmp_path, MULTIPATH.format(port=port), WorkerSettings(ports=())) == "PermissionError"


@needs_ports
async def test_nobody_listens_in_the_servers_place(tmp_path: Path) -> None:
    body = "import socket\nsocket.create_server(('127.0.0.1', 0))"
    assert await outcome(tmp_path, body, WorkerSettings(ports=(443,))) == "PermissionError"


@needs_ports
async def test_a_tool_server_on_another_port_is_told_with_the_setting(tmp_path: Path) -> None:
    with listener() as port:
        server = {"url": f"http://127.0.0.1:{port}/mcp", "auth": {}, "timeout": 5.0, "enabled": None}
        pool = ProcessPool(ProjectRuntime(FLOW_RUNTIME, project_with(tmp_path)), WorkerSettings(ports=(443,)))
        try:
            lease = await pool.lease({"mcp": {"towns": server}})
            answer = await lease.run({"op": "describe_remote"}, timeout=30, on_message=lambda message: None)
        finally:
            await pool.close()
    (failure,) = answer["failures"]
    assert "limits.function_network" in failure["error"]


@needs_ports
async def test_the_api_and_its_token_are_out_of_reach(
    server: tuple[Path, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, config = server
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    with listener() as port:
        file = LocalServer(f"http://127.0.0.1:{port}", "token").publish(f"127.0.0.1:{port}")
        settings = worker_settings(config, root)
        assert await outcome(root, f"open({str(file)!r})", settings) == "PermissionError"
        assert await outcome(root, CONNECT.format(port=port), settings) == "PermissionError"


def test_the_usual_ports_of_the_web_are_open_and_the_servers_own_is_not(tmp_path: Path) -> None:
    config = Config()
    ports = worker_settings(config, tmp_path).ports
    assert ports is not None
    assert 443 in ports
    assert config.http.listen.port not in ports


# Programs ---------------------------------------------------------------------------------------------------------


@needs_landlock
async def test_a_listed_program_is_started_and_no_other(tmp_path: Path) -> None:
    script = tmp_path / "hello"
    script.write_text("#!/usr/bin/env sh\necho hello\n")
    script.chmod(0o755)
    settings = WorkerSettings(programs=find_programs([str(script)], "limits.function_programs"))
    run = "import subprocess\nreturn subprocess.run([{!r}], capture_output=True, check=True, text=True).stdout"
    assert await outcome(tmp_path, run.format(str(script)), settings) == "hello\n"
    assert await outcome(tmp_path, run.format("/bin/true"), settings) == "PermissionError"


@needs_landlock
async def test_a_listed_python_has_its_libraries_and_its_callers_limits(tmp_path: Path) -> None:
    settings = WorkerSettings(programs=find_programs([sys.executable], "limits.function_programs"))
    code = "import msgspec; open('/etc/shadow')"
    run = f"import subprocess, sys\nreturn subprocess.run([sys.executable, '-c', {code!r}], stderr=-1).stderr.decode()"
    assert "PermissionError" in await outcome(tmp_path, run, settings)


def test_a_program_that_is_not_there_is_an_error_of_the_setting() -> None:
    config = override(Config(), {"limits.function_programs": ["no-such-program"]})
    with pytest.raises(ConfigError, match=r"limits\.function_programs: 'no-such-program'"):
        worker_settings(config, Path())


# The private folder -----------------------------------------------------------------------------------------------

FILL = (
    "import tempfile\nfor _ in range({count}):\n"
    "    with open(tempfile.mkstemp()[1], 'wb') as file:\n        file.write(b'x' * {size})\nreturn 'ok'"
)
COUNT = "import os\nreturn len(os.listdir(os.environ['TMPDIR']))"


@pytest.mark.parametrize(
    ("count", "size", "error"), [(9, 0, "more than 8 files"), (4, MIB // 2, "more than 1 MB")], ids=["files", "size"]
)
async def test_a_function_that_leaves_too_much_fails_and_the_folder_is_emptied(
    count: int, size: int, error: str, tmp_path: Path
) -> None:
    functions = {"fill": FILL.format(count=count, size=size), "few": FILL.format(count=2, size=10), "count": COUNT}
    root = project_with(tmp_path, **functions)
    pool = ProcessPool(ProjectRuntime(FLOW_RUNTIME, root), WorkerSettings(files=8, file_size=MIB))
    lease = await pool.lease({})
    try:
        assert (await call(lease, "few"))["returned"] == "ok"
        assert (await call(lease, "count"))["returned"] == 2
        with pytest.raises(WorkerDied, match=f"the function left {error}"):
            await call(lease, "fill")
        assert (await call(lease, "count"))["returned"] == 0
    finally:
        await pool.close()


async def test_a_single_file_has_a_limit(tmp_path: Path) -> None:
    body = "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'x' * 3_000_000)"
    assert await outcome(tmp_path, body, WorkerSettings(file_size=MIB)) == "OSError"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
async def folders(temporary: Path) -> AsyncIterator[PrivateFolders]:
    made = PrivateFolders(8, MIB)
    await made.open()
    yield made
    await made.close()


async def test_a_crashed_servers_folders_are_removed_and_a_running_ones_are_not(
    folders: PrivateFolders, temporary: Path
) -> None:
    kept = Path(folders.make().path)
    left = temporary / "callagent-workers-crashed"
    (left / "call" / "deep").mkdir(parents=True)
    (left / "call" / "file").write_text("x")
    strange = temporary / "callagent-workers-link"
    strange.symlink_to(temporary / "elsewhere")
    (temporary / "elsewhere").mkdir()
    remove_abandoned()
    assert not left.exists()
    assert kept.exists()
    assert (temporary / "elsewhere").exists()


async def test_a_folder_that_another_server_takes_for_an_abandoned_one_is_made_anew(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def make_and_lose(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            remove_abandoned()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    folders = PrivateFolders(8, MIB)
    await folders.open()
    assert len(made) == 2
    assert Path(made[1]).is_dir()
    await folders.close()


async def test_whatever_was_made_in_a_folder_is_removed(folders: PrivateFolders) -> None:
    folder = folders.make()
    outside = Path(folder.path).parent / "outside"
    outside.mkdir()
    os.symlink(outside, Path(folder.path, "link"))
    here = os.getcwd()
    os.chdir(folder.path)
    try:
        # Deeper than a path may be long, and nobody may enter it.
        for _ in range(1500):
            os.mkdir("folder")
            os.chdir("folder")
        Path("file").write_text("x")
        os.mkfifo("pipe")
        os.chmod(".", 0)
    finally:
        os.chdir(here)
    assert "more than 8 files" in await folder.find_excess()
    await folder.remove()
    assert not Path(folder.path).exists()
    assert outside.exists()


def test_a_folder_that_cannot_be_removed_is_left(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "never made"))


# Which files are closed -------------------------------------------------------------------------------------------


def test_a_folder_is_opened_but_for_what_is_closed_in_it(tmp_path: Path) -> None:
    for name in ("flows/a", "var/callagent.db", "var/callagent.db-wal", "var/keep/x", "variable", "secret/x"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "out").symlink_to("/etc")
    closed = [str(tmp_path / "var" / "callagent.db"), str(tmp_path / "secret"), "/etc/callagent"]
    found = {str(path.relative_to(tmp_path)) for path in open_parts(tmp_path, closed)}
    assert found == {"flows", "var/keep", "variable"}
    assert open_parts(tmp_path / "flows", closed) == [tmp_path / "flows"]
    assert open_parts(tmp_path / "secret" / "x", closed) == []


def test_packages_that_are_installed_in_place_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As setuptools does: a module that `site` imports tells where they are, and nothing beside them is opened."""
    for name in ("mylib/__init__.py", "single.py", ".env", "project/project.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    mapping = {"mylib": str(tmp_path / "mylib"), "single": str(tmp_path / "single")}
    monkeypatch.setitem(sys.modules, "__editable___mylib_1_0_finder", SimpleNamespace(MAPPING=mapping))  # type: ignore[arg-type]
    granted = {grant.path for grant in common_grants(tmp_path / "project", WorkerSettings())}
    inside = {path for path in granted if Path(path).is_relative_to(tmp_path)}
    assert inside == {str(tmp_path / name) for name in ("mylib", "single.py", "project")}


def test_other_projects_are_closed_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = [{"number": "1", "project": "."}, {"number": "2", "project": "agents/two"}]
    config = Config.model_validate({"numbers": numbers})
    assert str(tmp_path / "agents" / "two") in closed_paths(config, tmp_path)
    assert str(tmp_path / "agents" / "two") not in closed_paths(config, tmp_path / "agents" / "two")


# Kernels ----------------------------------------------------------------------------------------------------------


def test_what_a_kernel_leaves_open_is_told_in_words() -> None:
    assert "every file" in describe_gaps(0)
    assert describe_gaps(3).startswith("TCP connections to any port")
    assert "files" not in describe_gaps(3)
    assert describe_gaps(6) == ""
    if landlock_version() >= 6 and has_socket_filter():
        assert confinement_gaps() == ""


@pytest.mark.parametrize("kind", ["adk_desk", "cx_desk", "ferry"])
async def test_every_kind_of_project_is_served_from_a_folder_that_is_the_servers_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / kind
    shutil.copytree(PROJECTS / kind, root)
    (root / "var").mkdir()
    (root / "var" / "callagent.db").write_bytes(b"SQLite")
    (root / "callagent.toml").write_text("")
    (root / ".env").write_text("KEY=hush")
    monkeypatch.chdir(root)
    config = override(Config(), {"model.name": "rules"})
    project = await open_project(root, open_model("rules"), config, flow_settings(config, "sandbox"))
    await project.close()


# Outside services -------------------------------------------------------------------------------------------------

ASK = """\
import requests, urllib.request
address = 'https://localhost:{port}/'
return [requests.get(address, timeout=20).text, urllib.request.urlopen(address, timeout=20).read().decode()]"""


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"open")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def https_api(folder: Path) -> Iterator[tuple[int, Path]]:
    """A server with a certificate that only its own authority file knows: its port, and that file."""
    certificate, key = folder / "server.pem", folder / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
               "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http.server.ThreadingHTTPServer(("localhost", 0), _Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield server.server_address[1], certificate
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_an_outside_https_api_is_asked_as_ever(tmp_path: Path) -> None:
    (tmp_path / "authority").mkdir()
    with https_api(tmp_path / "authority") as (port, authority):
        environment = {"SSL_CERT_FILE": str(authority), "REQUESTS_CA_BUNDLE": str(authority)}
        settings = WorkerSettings(environment=environment, ports=(port,))
        assert await outcome(tmp_path / "project", ASK.format(port=port), settings) == "['open', 'open']"
