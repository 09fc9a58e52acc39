"""The published library, which is fetched and never kept."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = "cxas-scrapi==1.10.0"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked; skipped when it cannot be had."""
    folder = tmp_path_factory.mktemp("cxas")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{PACKAGE} cannot be downloaded in time")
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"{PACKAGE} cannot be downloaded")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder)
    return folder
