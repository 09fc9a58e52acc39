"""Lines of ended calls wait while their file cannot be written, and are there in the end, each once and whole."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from callagent.records.json_lines import JsonLines
from tests.end_to_end.scripted import until


@pytest.fixture
def small_files() -> Iterator[int]:
    """A bound of a file's size, as a full disk has one; it is taken away by the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    yield before[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


async def test_lines_wait_while_the_disk_is_full(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "below" / "calls.jsonl"
    lines = JsonLines(path)
    texts = [f"{number:0400}" for number in range(5)]
    for text in texts:
        lines.add(text)
    await until(lambda: path.exists() and path.stat().st_size == 2 * 401, 60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (small_files, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    await until(lambda: path.stat().st_size == 5 * 401, 60)
    await lines.close()
    assert path.read_text().splitlines() == texts
