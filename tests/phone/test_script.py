from __future__ import annotations

from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.phone.caller import Step, load_script, steps_from

EVERY_STEP = """\
- say: "where is my parcel"
- play: caller.wav
- press: 84276
- wait_for: "arrives on"
- interrupt: "stop please"
  after: 0.5
- backchannel: "mm-hm"
- mumble: 1.5
- stay_silent: 20
- noise: -35
- noise: off
- packet_loss: 5
- wait: 2
- hang_up: true
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "caller.yaml"
    path.write_text(text)
    return path


def test_a_script_of_every_step(tmp_path: Path) -> None:
    assert load_script(write(tmp_path, EVERY_STEP)) == [
        Step("say", "where is my parcel"),
        Step("play", str(tmp_path / "caller.wav")),
        Step("press", "84276"),
        Step("wait_for", "arrives on"),
        Step("interrupt", "stop please", 0.5),
        Step("backchannel", "mm-hm"),
        Step("mumble", "1.5"),
        Step("stay_silent", "20"),
        Step("noise", "-35"),
        Step("noise", "off"),
        Step("packet_loss", "5"),
        Step("wait", "2"),
        Step("hang_up", "True"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a script is a list of steps such as `- say: hello`"),
        ("say: hello\n", "a script is a list of steps"),
        ("- say: hello\n- [\n", "caller.yaml:3: not valid YAML: expected"),
        ("- hello\n", "step 1 needs one of say, play, mumble, press, stay_silent, wait_for"),
        ("- say: a\n- sya: b\n", "step 2 needs one of"),
        ("- say: a\n  play: b\n", "step 1 needs one of"),
        ("- say: a\n  after: 1\n", "step 1 (say): unknown key 'after'"),
        ("- say: a\n  1: 2\n", "step 1 (say): unknown key '1'"),
        ("- say: [a]\n", "step 1 (say): needs a text or a number, not ['a']"),
        ("- say:\n", "step 1 (say): needs a text or a number, not None"),
        ("- press: 12x\n", "step 1 (press): '12x' are not keys of a telephone (0-9 * # A-D)"),
        ("- wait_for: '('\n", "step 1 (wait_for): '(' is not a regular expression"),
        ("- wait: soon\n", "step 1 (wait) needs seconds, 0 to 3600, not 'soon'"),
        ("- wait: .nan\n", "step 1 (wait) needs seconds"),
        ("- wait: -1\n", "step 1 (wait) needs seconds"),
        ("- mumble: long\n", "step 1 (mumble) needs seconds"),
        ("- packet_loss: 101\n", "step 1 (packet_loss) needs per cent, 0 to 100, not '101'"),
        ("- noise: loud\n", "step 1 (noise) needs 'off' or decibels below full scale, -90 to 0, not 'loud'"),
        ("- interrupt: a\n  after: soon\n", "step 1 (interrupt): after needs seconds, 0 to 3600, not 'soon'"),
        ("- interrupt: a\n  after: [1]\n", "step 1 (interrupt): after needs seconds"),
    ],
)
def test_a_mistake_is_told_with_file_and_step(text: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as refused:
        load_script(path)
    assert str(refused.value).startswith(str(path))
    assert words in str(refused.value)


def test_a_script_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"caller\.yaml: cannot be read: No such file or directory"):
        load_script(tmp_path / "caller.yaml")
    (tmp_path / "caller.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"caller\.yaml: not UTF-8"):
        load_script(tmp_path / "caller.yaml")


def test_options_make_a_script_with_the_keys_first() -> None:
    assert steps_from(["a", "b"], None, "12#") == [Step("press", "12#"), Step("say", "a"), Step("say", "b")]
    assert steps_from(None, [Path("x.wav")], None) == [Step("play", "x.wav")]
    assert steps_from(None, None, None) == []
    with pytest.raises(UserError, match=r"--dtmf: 'abc' are not keys of a telephone"):
        steps_from(None, None, "abc")
