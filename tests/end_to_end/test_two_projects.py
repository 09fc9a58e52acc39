"""One server, two projects whose modules have the same names; the number called chooses project and environment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.agents.flows.support import function, write_project
from tests.end_to_end.scripted import scripts, talker
from tests.end_to_end.server_process import serve

pytestmark = pytest.mark.end_to_end

BROKEN = "import a_module_that_nobody_has\n"
START = """
    from functions.names import NAME
    import rules
    conv.state.rules = rules.WHICH
    return {"utterance": f"{NAME}, {conv.env}."}
"""


def project(root: Path, name: str) -> Path:
    files = {
        "project.yaml": f"project_name: {name}\nproject_id: {name.lower()}\naccount_id: tests\n",
        "agent_settings/rules.txt": "Be brief.",
        "functions/start_function.py": function("start_function", START),
        "functions/names.py": f"NAME = '{name}'\n" + function("names", "return 'x'"),
        "functions/rules.py": f"WHICH = 'rules of {name}'\n" + function("rules", "return 'x'"),
        "functions/broken.py": BROKEN + function("broken", "return 'x'"),
    }
    return write_project(root / name.lower(), files)


async def test_the_number_called_chooses_the_project(tmp_path: Path) -> None:
    one, two = project(tmp_path, "Harbour"), project(tmp_path, "Lighthouse")
    config = tmp_path / "callagent.toml"
    config.write_text(
        f'[[numbers]]\nnumber = "100"\nproject = "{one}"\nenvironment = "live"\nfallback = "desk"\n'
        f'[[numbers]]\nnumber = "2*"\nproject = "{two}"\n'
        '[[targets]]\nname = "desk"\nuri = "sip:desk@127.0.0.1"\n'
    )
    settings = scripts(tmp_path, [], [])
    with serve(tmp_path, "--config", str(config), **settings) as server:
        async with talker(server.sip, user="100") as first, talker(server.sip, user="207") as second:
            await asyncio.gather(first.listen(1), second.listen(1))
        records = await asyncio.to_thread(server.wait_for_records, 2)
        told = [line for line in server.log() if line["event"] == "function_not_imported"]
    said = {record["to_number"]: record["turns"][0]["agent_response"] for record in records}
    assert said == {"100": "Harbour, live.", "207": "Lighthouse, sandbox."}
    assert {record["state"]["rules"] for record in records} == {"rules of Harbour", "rules of Lighthouse"}
    # Whoever serves a project hears at the start which functions cannot run, and where.
    assert {(line["project"], line["file"], line["line"]) for line in told} == {
        ("Harbour", "functions/broken.py", 1),
        ("Lighthouse", "functions/broken.py", 1),
    }
