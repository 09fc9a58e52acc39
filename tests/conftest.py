"""What the tests need of the machine."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

PEERS = ("baresip", "sipp")
PARTS = ("bench", "calls", "formats", "fuzz", "media", "signalling", "soak", "storage", "web")
"""What `make acceptance PART=...` can run by itself."""

# A machine that others use as well may take any time for an example.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """On a gate nothing may be skipped for want of a peer: the run fails instead."""
    missing = [name for name in PEERS if shutil.which(name) is None]
    if missing and os.environ.get("CI") == "true":
        raise pytest.UsageError(f"the gate needs {', '.join(missing)}: see .ci/run for the packages")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="of the acceptance tests, run one part")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check that every acceptance test names its part, and keep those of `--part`."""
    chosen = config.getoption("--part")
    for item in tuple(items):
        mark = item.get_closest_marker("acceptance")
        if mark is not None and (len(mark.args) != 1 or mark.args[0] not in PARTS):
            raise pytest.UsageError(f"{item.nodeid}: pytest.mark.acceptance needs one of {', '.join(PARTS)}")
        if chosen and (mark is None or mark.args != (chosen,)):
            items.remove(item)
