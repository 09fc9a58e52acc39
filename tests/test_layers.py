"""Who may import whom: the folders are the architecture."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

from scripts import structure

ROOT = Path(__file__).parents[1] / "callagent"
EVERYBODY = {"callagent", "audio", "call_info", "errors", "failover", "json_values", "log", "phone_numbers"}
"""What every package may import."""

MAY_IMPORT: dict[str, set[str]] = {
    "audio": set(),
    "call_info": set(),
    "json_values": set(),
    "errors": set(),
    "failover": set(),
    "log": set(),
    "config": {"models.protocol", "models.providers", "speech.providers"},
    "sip": set(),
    "rtp": set(),
    "legs": {"sip", "rtp"},
    "carriers": {"config", "legs", "web"},
    "session_api": {"agents", "carriers", "legs", "turns", "web"},
    "web": {"agents", "call", "config", "legs", "records", "sip", "turns"},
    "turns": {"agents.actions", "agents.protocol", "speech.protocol"},
    "agents": {"models.protocol", "workers.protocol"},
    "speech": set(),
    "models": set(),
    "workers": set(),
    "observability": {"records"},
    "records": set(),
    "phone_numbers": set(),
    "call": {"agents", "legs", "models.token_budget", "records", "speech.protocol", "turns"},
}
"""Packages not named here (server, commands, phone, bench …) may import everything."""

INNER_MAY_IMPORT: dict[str, set[str]] = {
    "agents.kernel": set(),
    "agents.flows": {"agents.kernel", "agents.mcp"},
    "agents.tree": {"agents.kernel"},
    "agents.adk": {"agents.kernel", "agents.mcp", "agents.tree"},
    "agents.cx": {"agents.kernel", "agents.mcp", "agents.tree"},
    "agents.mcp": set(),
    "models.embedded": {"models.functiongemma", "models.rules"},
    "models.functiongemma": set(),
    "models.providers": set(),
    "models.rules": set(),
    "sip.connections": {"sip.message", "sip.tls"},
    "sip.dialog": {"sip.digest", "sip.message", "sip.transaction_layer", "sip.transaction_machines"},
    "sip.digest": {"sip.message"},
    "sip.dns_lookup": {"sip.message"},
    "sip.message": set(),
    "sip.offer_answer": {"sip.session_description"},
    "sip.session_description": {"sip.message"},
    "sip.tls": set(),
    "sip.trace": {"sip.message"},
    "sip.transaction_layer": {"sip.message", "sip.transaction_machines"},
    "sip.transaction_machines": {"sip.message"},
    "sip.trunks": {"sip.digest", "sip.dns_lookup", "sip.endpoint", "sip.message"},
    "sip.udp": set(),
    "speech.local": set(),
    "speech.providers": set(),
}
"""Which parts of the same package, sub-packages or modules, a part of it may import."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@cache
def package() -> dict[str, structure.Module]:
    return structure.read_package(ROOT)


@pytest.mark.parametrize("name", sorted(package()))
def test_a_module_imports_only_what_its_package_may(name: str) -> None:
    module = package()[name]
    own = name.split(".")[1:2]
    if not own or own[0] not in MAY_IMPORT:
        return
    allowed = MAY_IMPORT[own[0]] | EVERYBODY | set(own)
    for imported in (one.removeprefix("callagent.") for one in structure.definitions(module, package())):
        assert any(imported == one or imported.startswith(f"{one}.") for one in allowed), f"{name} imports {imported}"


def test_no_import_is_relative() -> None:
    for module in package().values():
        levels = [node.level for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom)]
        assert not any(levels), f"{module.name}: relative import"


def test_a_sub_package_imports_only_the_sub_packages_it_may() -> None:
    for module in package().values():
        inner = ".".join(module.name.split(".")[1:3])
        for name in module.imports if inner in INNER_MAY_IMPORT else ():
            other = ".".join(name.split(".")[1:3])
            allowed = INNER_MAY_IMPORT[inner] | {inner}
            assert other not in INNER_MAY_IMPORT or other in allowed, f"{module.name} imports {name}"


def test_functions_and_modules_stay_short() -> None:
    modules = package().values()
    total = structure.sizes(modules)
    assert [place for lines, place in total.functions if lines > 40] == []
    assert [place for depth, place in total.nesting if depth > 3] == []
    assert [module.name for module in modules if module.lines > 600] == []


def test_there_is_no_import_cycle() -> None:
    assert structure.cycles(package()) == []


def test_no_import_passes_a_front_door() -> None:
    assert structure.past_front_doors(package()) == set(), "import from the package's __init__"


@pytest.mark.parametrize(
    "front", [path for path in modules() if path.name == "__init__.py"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_a_front_door_names_is_there_and_sorted(front: Path) -> None:
    name = ".".join(["callagent", *front.parent.relative_to(ROOT).parts])
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(set(exported)) == len(exported)
    for one in exported:
        assert hasattr(module, one)


def test_help_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    script = (
        "import sys, runpy; sys.argv = ['callagent', '--help']\n"
        "try:\n    runpy.run_module('callagent', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'aiohttp', 'audioop', 'ctranslate2', 'msgspec', 'numpy', 'onnxruntime', 'phonenumbers', "
        "'prometheus_client', 'pydantic', 'pydub', 'soxr', 'twilio', 'websockets', 'uvloop'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().endswith("HEAVY []")
