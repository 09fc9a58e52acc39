"""Card numbers, e-mail addresses and telephone numbers, spoken and keyed, are in nothing that a call leaves behind."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.scripted import MILL, scripts, talker
from tests.end_to_end.server_process import serve

pytestmark = [pytest.mark.end_to_end, pytest.mark.acceptance("formats")]

FUNCTION = """\
from _gen import *  # <AUTO GENERATED>


@func_description("Note something down.")
@func_parameter("what", "What to note.")
def note_down(conv: Conversation, what: str):
    conv.state.noted = what
    conv.state["by " + what] = True
    conv.log.info(f"noted {what}", what=what)
    conv.write_metric("NOTED", what)
    conv.write_metric("NOTED_AS_DATA", {"what": [what]})
    print(what)
    if "please fail" in what:
        raise ValueError(f"cannot note {what}")
    return f"Noted: {what}"
"""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def card(chance: random.Random) -> str:
    """Sixteen digits whose check digit fits."""
    digits = [chance.choice((4, 5)), *(chance.randrange(10) for _ in range(14))]
    sums = [sum(divmod(digit * (2 - place % 2), 10)) for place, digit in enumerate(digits)]
    return "".join(map(str, [*digits, -sum(sums) % 10]))


def seeded() -> tuple[list[str], list[str]]:
    """What the caller says, and the texts that must be found nowhere, without separators."""
    chance = random.Random(8)
    said, secrets = [], []
    for number in range(3):
        pan, phone, name = (
            card(chance),
            f"+1415{chance.randrange(2000000, 9999999)}",
            f"vera{chance.randrange(9999)}quist",
        )
        spelt = " ".join(DIGITS[int(digit)] for digit in pan)
        grouped = " ".join(pan[at : at + 4] for at in range(0, 16, 4))
        said += [
            f"my card is {(spelt, grouped, '-'.join(pan))[number]}",
            f"call {phone if number % 2 else ' '.join(phone[2:])} please fail",
            f"write to {name}@example.com" if number % 2 else f"write to {name} at example dot com",
        ]
        secrets += [pan, spelt.replace(" ", ""), phone[2:], name]
    return said, secrets


def project(folder: Path) -> Path:
    made = Path(shutil.copytree(MILL, folder / "project"))
    (made / "functions" / "note_down.py").write_text(FUNCTION)
    rules = made / "agent_settings" / "rules.txt"
    rules.write_text(rules.read_text() + "Use {{fn:note_down}} when asked.\n")
    return made


def left_behind(folder: Path) -> dict[str, str]:
    """All files but the script itself, as text without what may stand between the characters of a number."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    return {path.name: re.sub(r"[\s,.\-()]", "", path.read_bytes().decode("latin-1").lower()) for path in files}


async def converse(address: str, turns: int, keys: str) -> None:
    async with talker(address) as caller:
        await caller.listen(1)
        for turn in range(turns):
            await caller.say()
            await caller.listen(turn + 2)
        await caller.line.send_digits(keys)
        await asyncio.sleep(1.0)


async def test_none_of_them_is_in_database_log_metrics_or_recording(tmp_path: Path) -> None:
    said, secrets = seeded()
    keys = card(random.Random(9))
    thoughts: list[dict[str, Any]] = [
        {"calls": [{"name": "note_down", "arguments": {"what": words}}]} for words in said
    ]
    answers = [{"text": f"It was: {words}."} for words in said]
    script = [entry for pair in zip(thoughts, answers, strict=True) for entry in pair]
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = scripts(tmp_path, said, script) | {
        "RECORDS__RECORDINGS": str(kept / "recordings"),
        "RECORDS__JSON_LINES": str(kept / "calls.jsonl"),
        "LOG__LEVEL": "debug",
    }
    with serve(kept, "--http", "127.0.0.1:0", project=project(tmp_path), **settings) as server:
        await converse(server.sip, len(said), keys)
        (record,) = await asyncio.to_thread(server.wait_for_records, 1)
        metrics = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/metrics", headers=server.login)
        (kept / "metrics.txt").write_bytes(await asyncio.to_thread(lambda: urllib.request.urlopen(metrics).read()))
    runs = [one for turn in record["turns"] for one in turn["functions"] if one["name"] == "note_down"]
    assert len(runs) == len(said), "all of it was said and noted"
    assert len(record["digits"]) == 16
    files = left_behind(kept)
    assert {"calls.db", "calls.jsonl", "server.err", "metrics.txt"} <= files.keys()
    found = {(name, secret) for name, text in files.items() for secret in [*secrets, keys] if secret in text}
    assert found == set()
