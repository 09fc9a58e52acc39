"""What the tests need of the machine."""

from __future__ import annotations

import os
import shutil

import pytest

PEERS = ("baresip", "sipp")


def pytest_configure(config: pytest.Config) -> None:
    """On a gate nothing may be skipped for want of a peer: the run fails instead."""
    missing = [name for name in PEERS if shutil.which(name) is None]
    if missing and os.environ.get("CI") == "true":
        raise pytest.UsageError(f"the gate needs {', '.join(missing)}: see .ci/run for the packages")
