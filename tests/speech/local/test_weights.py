"""The packaged models are put together once, and only the right ones are used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from callagent.errors import MissingExtra, UserError
from callagent.speech.local import weights


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small packages laid out as the real ones."""
    root = tmp_path / "packages"
    for number, part in ((1, b"first "), (2, b"second")):
        data = root / f"small_base_{number}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").touch()
        (data / f"model.bin.part{number}").write_bytes(part)
    for name in ("config.json", "tokenizer.json", "vocabulary.json"):
        (root / "small_base_2" / "data" / name).write_text("{}")
    tiny = root / "small_tiny" / "model"
    tiny.mkdir(parents=True)
    (tiny.parent / "__init__.py").touch()
    (tiny / "model.bin").write_bytes(b"tiny")
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setattr(weights, "BASE_PARTS", ("small_base_1", "small_base_2"))
    monkeypatch.setattr(weights, "BASE_SHA256", hashlib.sha256(b"first second").hexdigest())
    monkeypatch.setattr(weights, "TINY", "small_tiny")
    monkeypatch.setattr(weights, "TINY_SHA256", hashlib.sha256(b"tiny").hexdigest())
    return root


def test_the_parts_become_one_model_directory(packages: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    directory = weights.final_model("", cache)
    assert (directory / "model.bin").read_bytes() == b"first second"
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.json",
        "model.bin",
        "tokenizer.json",
        "vocabulary.json",
    ]
    assert sorted(path.name for path in cache.iterdir()) == ["verified", directory.name]


def test_it_is_put_together_and_verified_only_once(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = weights.final_model("", tmp_path / "cache")
    weights.partial_model(tmp_path / "cache")
    (packages / "small_base_1" / "data" / "model.bin.part1").unlink()
    monkeypatch.setattr(weights, "_digest", lambda path: pytest.fail(f"{path} was read again"))
    assert weights.final_model("", tmp_path / "cache") == first
    weights.partial_model(tmp_path / "cache")


def test_a_changed_model_is_noticed(packages: Path, tmp_path: Path) -> None:
    directory = weights.partial_model(tmp_path / "cache")
    assert directory is not None
    (directory / "model.bin").write_bytes(b"tinier")
    with pytest.raises(UserError, match=r"small_tiny/model/model.bin: the model is damaged or another one"):
        weights.partial_model(tmp_path / "cache")


def test_damaged_parts_are_refused(packages: Path, tmp_path: Path) -> None:
    (packages / "small_base_2" / "data" / "model.bin.part2").write_bytes(b"sicond")
    with pytest.raises(UserError, match="expected"):
        weights.final_model("", tmp_path / "cache")


def test_a_damaged_stamp_only_costs_another_look(packages: Path, tmp_path: Path) -> None:
    weights.partial_model(tmp_path / "cache")
    for stamp in (tmp_path / "cache" / "verified").iterdir():
        stamp.write_text("{")
    assert weights.partial_model(tmp_path / "cache").is_dir()


def test_a_model_directory_of_ones_own_is_used_as_it_is(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.bin"):
        (tmp_path / name).touch()
    assert weights.final_model(str(tmp_path), tmp_path / "cache") == tmp_path
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"not a CTranslate2 Whisper model: no tokenizer.json"):
        weights.final_model(str(tmp_path), tmp_path / "cache")


def test_missing_model_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weights, "BASE_PARTS", ("no_such_package", "nor_this"))
    with pytest.raises(MissingExtra, match="no_such_package"):
        weights.final_model("", tmp_path)
    with pytest.raises(MissingExtra, match=r"missing here: .*no_such_package, nor_this; 'none' does without"):
        weights.require_recognizer(packaged_base=True)


def test_without_the_small_model_the_final_one_writes_partials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weights, "TINY", "no_such_package")
    assert weights.partial_model(tmp_path) is None
