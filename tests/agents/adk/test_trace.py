"""The engine against recorded runs of the reference implementation (google-adk 2.13.0)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.adk import adk_runtime, load_adk_project
from callagent.agents.tree import TreeSettings
from callagent.models.scripted import ScriptedModel
from callagent.testing.in_process import InProcessPool
from tests.agents.adk.random_conversations import TREES, conversations
from tests.agents.adk.support import PROJECTS
from tests.agents.adk.trace import record_trace, script_entries

REFERENCE = Path(__file__).parent / "reference"


def recorded() -> list[Any]:
    """Our own samples, and the published ones where `CALLAGENT_ADK_SAMPLES` (their folder) and
    `CALLAGENT_ADK_TRACES` (recorded runs of them) are set."""
    cases = [(PROJECTS, case) for file in sorted(REFERENCE.glob("*.json")) for case in json.loads(file.read_text())]
    samples, traces = os.environ.get("CALLAGENT_ADK_SAMPLES"), os.environ.get("CALLAGENT_ADK_TRACES")
    if samples and traces:
        cases += [(Path(samples), case) for case in json.loads(Path(traces).read_text())]
    return [
        pytest.param(folder, case, id=f"{case['config'].split('/')[0]}-{number}")
        for number, (folder, case) in enumerate(cases)
    ]


def comparable(value: Any) -> Any:
    """Recorded runs leave out what is null in a schema; when something was remembered, and its number, differ."""
    if isinstance(value, dict):
        if "custom_metadata" in value:
            value = {**value, "id": "", "timestamp": ""}
        return {key: comparable(each) for key, each in value.items() if not (key == "default" and each is None)}
    if isinstance(value, str):
        return re.sub(r"^Time: \S+$", "Time:", value, flags=re.MULTILINE)
    return [comparable(each) for each in value] if isinstance(value, list) else value


def without_words(value: Any) -> Any:
    """What is wrong with an answer that has a schema is the library's text, of its version."""
    plain = comparable(value)
    for each in plain if isinstance(plain, list) else ():
        if isinstance(each, dict) and str(each.get("EXC")).startswith("ValidationError"):
            each["EXC"] = "ValidationError"
    return plain


def located(folder: Path, config: str) -> Path:
    """Newer versions of the published samples are in folders by subject."""
    return folder / config if (folder / config).is_file() else next(folder.rglob(config), folder / config)


async def ours(folder: Path, case: Mapping[str, Any]) -> dict[str, Any]:
    path = located(folder, case["config"]).parent
    model = ScriptedModel.from_entries(*script_entries(case["script"]))
    settings = TreeSettings(model_name="fake")
    project = load_adk_project(path, model, InProcessPool(adk_runtime(path)), settings)
    return await record_trace(project, case["turns"], case.get("initial_state"))


@pytest.mark.parametrize(("folder", "case"), recorded())
async def test_a_conversation_runs_as_it_was_recorded(folder: Path, case: dict[str, Any]) -> None:
    trace = await ours(folder, case)

    for key in ("events", "model_calls", "state", "stdout"):
        assert comparable(trace[key]) == comparable(case.get(key, [""])), key


def run_reference(folder: Path, cases: Sequence[Mapping[str, Any]], work: Path) -> list[Any]:
    """The cases as google-adk runs them; skipped without it. `CALLAGENT_ADK_PYTHON`: an interpreter that has it."""
    file = work / "cases.json"
    file.write_text(json.dumps(cases))
    python = os.environ.get("CALLAGENT_ADK_PYTHON") or sys.executable
    program = Path(__file__).with_name("record_reference.py")
    done = subprocess.run([python, program, folder, file], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == 77:
        pytest.skip("google-adk is not installed")
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("file", sorted(REFERENCE.glob("*.json")), ids=lambda file: file.stem)
def test_the_reference_implementation_still_runs_so(file: Path, tmp_path: Path) -> None:
    known = ("config", "turns", "script", "initial_state")
    references = json.loads(file.read_text())
    cases = [{key: each[key] for key in known if key in each} for each in references]
    for recorded, reference in zip(run_reference(PROJECTS, cases, tmp_path), references, strict=True):
        for key in ("events", "model_calls", "state"):
            assert comparable(recorded[key]) == comparable(reference[key]), key


async def test_conversations_at_random_run_as_the_reference_runs_them(tmp_path: Path) -> None:
    """`CALLAGENT_ADK_SEED` and `CALLAGENT_ADK_COUNT` give others and more of them."""
    seed, count = (int(os.environ.get(f"CALLAGENT_ADK_{name}") or 0) for name in ("SEED", "COUNT"))
    folders = [Path(each) for each in (os.environ.get("CALLAGENT_ADK_SAMPLES"), PROJECTS) if each]
    for folder in folders:
        trees = [tree for tree in TREES if (folder / tree).is_dir()]
        cases = list(conversations(trees, seed, count or 4 * len(trees)))
        for case, reference in zip(cases, run_reference(folder, cases, tmp_path), strict=True):
            trace = json.loads(json.dumps(await ours(folder, case)))
            for key in ("events", "model_calls", "state", "stdout"):
                assert without_words(trace[key]) == without_words(reference[key]), (case, key)


async def test_a_trace_is_the_same_when_code_runs_in_a_process() -> None:
    from callagent.workers import ProcessPool

    path = PROJECTS / "adk_desk"
    model = ScriptedModel.from_entries({"calls": [{"name": "break_down", "arguments": {}}]})
    project = load_adk_project(path, model, ProcessPool(adk_runtime(path)))
    try:
        trace = await record_trace(project, ["hello"])
    finally:
        await project.close()
    assert trace["events"][-1] == {"EXC": "RuntimeError: the telephone is on fire"}
