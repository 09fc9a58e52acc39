"""How the user who started the server gets in: the link that it prints, `callagent login-link`, the token file."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.server.local_server import LocalServer, find_server
from callagent.web.accounts import LINK_SECONDS, LocalLogin
from tests.end_to_end.scripted import scripts
from tests.end_to_end.server_process import ServerProcess, run_command, serve
from tests.web.proxies import make_certificate

MILL = Path(__file__).parents[1] / "projects" / "mill"


# Links ----------------------------------------------------------------------------------------------------------------


def test_a_link_is_good_once_and_for_ten_minutes() -> None:
    login = LocalLogin()
    link = login.make_link(0.0)
    assert not login.take_link("another", 1.0)
    assert login.take_link(link, LINK_SECONDS - 1)
    assert not login.take_link(link, LINK_SECONDS - 1)
    assert not login.take_link(login.make_link(0.0), LINK_SECONDS)


def test_links_are_bounded_and_the_newest_are_good() -> None:
    login = LocalLogin()
    links = [login.make_link(float(second)) for second in range(100)]
    assert len(set(links)) == 100
    assert [login.take_link(link, 100.0) for link in links] == [False] * 80 + [True] * 20


# The token file -------------------------------------------------------------------------------------------------------


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_only_its_user_can_read_the_token_file(runtime: Path) -> None:
    server = LocalServer("http://127.0.0.1:8080", "token")
    before = os.umask(0)
    try:
        path = server.publish("127.0.0.1:8080")
    finally:
        os.umask(before)
    assert path.parent == runtime / "callagent"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_server("127.0.0.1:8080") == server
    assert find_server("127.0.0.1:8081") is None
    assert find_server("localhost:8080") == server
    # Another server has taken the port meanwhile: its file stays.
    newer = LocalServer("http://127.0.0.1:8080", "another")
    newer.publish("127.0.0.1:8080")
    server.withdraw(path)
    assert find_server("127.0.0.1:8080") == newer
    newer.withdraw(path)
    assert not list(path.parent.iterdir())


def test_a_folder_that_others_may_write_is_not_used(runtime: Path, tmp_path: Path) -> None:
    (runtime / "callagent").mkdir()
    (runtime / "callagent").chmod(0o777)
    path = LocalServer("http://127.0.0.1:8080", "token").publish("127.0.0.1:8080")
    assert path.parent == tmp_path / "state" / "callagent"


def test_without_a_runtime_folder_the_users_own_is_taken(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.rmdir()
    server = LocalServer("http://127.0.0.1:8080", "token")
    assert server.publish("127.0.0.1:8080").parent == tmp_path / "state" / "callagent"
    # A service of systemd has a folder of its own.
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "service"))
    assert server.publish("127.0.0.1:8080").parent == tmp_path / "service"


@pytest.mark.usefixtures("runtime")
def test_a_file_that_is_no_token_file_is_named() -> None:
    path = LocalServer("http://127.0.0.1:8080", "token").publish("127.0.0.1:8080")
    for text in ("", "[]", '{"url": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match=str(path)):
            find_server("127.0.0.1:8080")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_file_is_no_file() -> None:
    script = (
        "import os\n"
        "from callagent.server.local_server import find_server\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(find_server('127.0.0.1:8080'))"
    )
    # Other users cannot look into the tests' own folder.
    with tempfile.TemporaryDirectory() as runtime:
        os.chmod(runtime, 0o755)
        path = Path(runtime) / "callagent" / "http-127.0.0.1:8080.json"
        path.parent.mkdir()
        path.write_text('{"url": "http://127.0.0.1:8080", "token": "another\'s"}')
        path.chmod(0o600)
        environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == "None\n", done.stderr


# A server -------------------------------------------------------------------------------------------------------------


def login_link(server: ServerProcess, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state")}
    return run_command(["login-link", "--http", f"127.0.0.1:{server.http_port}", *more], **environment)


def follow(link: str, **more: str) -> int:
    """As the page does."""
    url, _, secret = link.partition("/login#")
    body = json.dumps({"link": secret}).encode()
    headers = {"Content-Type": "application/json", **more}
    request = urllib.request.Request(url + "/api/login/link", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, **scripts(tmp_path, [], [])) as server:
        yield server


def test_the_printed_link_opens_the_dashboard_once_and_another_is_asked_for(
    running: ServerProcess, tmp_path: Path
) -> None:
    assert running.process.stdout is not None
    word, link, *rest = running.process.stdout.readline().split()
    assert (word, rest[:1]) == ("login", ["(once,"])
    assert link.startswith(f"http://127.0.0.1:{running.http_port}/login#")
    assert follow(link) == 200
    assert follow(link) == 401
    printed = login_link(running, tmp_path)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert follow(printed.stdout.strip()) == 200
    log = running.errors.read_text()
    assert link.partition("#")[2] not in log
    assert json.loads(running.token_file.read_text())["token"] not in log


def test_the_token_file_goes_with_the_server(tmp_path: Path) -> None:
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, **scripts(tmp_path, [], [])) as server:
        assert stat.S_IMODE(server.token_file.stat().st_mode) == 0o600
    assert not server.token_file.exists()
    with socket.socket() as nobody_else:
        nobody_else.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        nobody_else.bind(("127.0.0.1", server.http_port))
        done = login_link(server, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no server listens at 127.0.0.1:{server.http_port}" in done.stderr


def test_who_did_not_start_the_server_is_told_so(running: ServerProcess, tmp_path: Path) -> None:
    running.token_file.rename(tmp_path / "away.json")
    done = login_link(running, tmp_path)
    assert done.returncode == 1
    assert f"the server at 127.0.0.1:{running.http_port} was started by another user" in done.stderr


def test_a_server_with_users_prints_no_link(tmp_path: Path) -> None:
    config = tmp_path / "callagent.toml"
    config.write_text('[[users]]\nname = "ann"\ntoken = "00"\n')
    arguments = ("--http", "127.0.0.1:0", "--config", str(config))
    with serve(tmp_path, *arguments, project=MILL, **scripts(tmp_path, [], [])) as server:
        assert not server.token_file.exists()
        done = login_link(server, tmp_path, "--config", str(config))
        assert "has [[users]]" in done.stderr
        server.process.terminate()
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


def test_over_https_the_link_is_asked_for_and_says_so(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = {"HTTP__CERTIFICATE": str(certificate), "HTTP__KEY": str(key)}
    with serve(tmp_path, "--http", "127.0.0.1:0", project=MILL, **tls, **scripts(tmp_path, [], [])) as server:
        printed = login_link(server, tmp_path)
        assert printed.stdout.startswith(f"https://127.0.0.1:{server.http_port}/login#"), printed.stderr
        # Whoever else listens at that port is not asked, and not given the token.
        other, _ = make_certificate(tmp_path, "other")
        told = json.loads(server.token_file.read_text())
        server.token_file.write_text(json.dumps({**told, "certificate": str(other)}))
        assert "CERTIFICATE_VERIFY_FAILED" in login_link(server, tmp_path).stderr


def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path)
    _, key = make_certificate(tmp_path, "other")
    settings = {
        "CALLAGENT_HTTP__CERTIFICATE": str(certificate),
        "CALLAGENT_HTTP__KEY": str(key),
        "CALLAGENT_RECORDS__PATH": str(tmp_path / "calls.db"),
    }
    environment = settings | {f"CALLAGENT_{name}": value for name, value in scripts(tmp_path, [], []).items()}
    done = run_command(["serve", str(MILL), "--sip", "off", "--http", "127.0.0.1:0"], **environment)
    assert done.returncode == 1
    assert f'http.certificate = "{certificate}"' in done.stderr
    assert "Traceback" not in done.stderr
