"""The files of an exported app in a folder or a zip, and the recordings among them.

Files can be written back unchanged. A recording that the app plays is a WAV file in its folder, whatever bucket its
address names: `gs://bucket/prompts/hold.wav` is `prompts/hold.wav` or `audio/hold.wav`.
"""

from __future__ import annotations

import contextlib
import io
import wave
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProjectError
from callagent.log import get_logger

APP_FILES = ("app.json", "app.yaml", "app.yml")
MAX_FILES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Unpacked bytes of all files together, because a small zip may hold a very large file."""


@dataclass(frozen=True, slots=True)
class AppFiles:
    """The files of an app."""

    root: str
    """The app's folder inside the zip; empty: the zip's root."""
    contents: Mapping[str, bytes]
    """Bytes of each file by its path below the root, with forward slashes."""

    @property
    def app_file(self) -> str:
        """The path of the main file. Raises `ProjectError` if there is none."""
        for name in APP_FILES:
            if name in self.contents:
                return name
        raise ProjectError("the main file is missing: an exported app has an app.json or app.yaml")

    def text(self, path: str) -> str | None:
        """Return a file's text; None if there is no such file. Raises `ProjectError` if it is not UTF-8."""
        raw = self.contents.get(PurePosixPath(path).as_posix())
        if raw is None:
            return None
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProjectError(f"{path}: not UTF-8 text: {error.reason}") from None

    def write(self, path: Path) -> None:
        """Write the files into a folder, or into a zip if the path ends with `.zip`."""
        if path.suffix.lower() == ".zip":
            root = f"{self.root or path.stem}/"
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, raw in sorted(self.contents.items()):
                    archive.writestr(f"{root}{name}", raw)
            return
        for name, raw in self.contents.items():
            place = path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)


def read_files(path: Path) -> AppFiles:
    """Read a folder or zip. Raises `ProjectError` if it cannot be read or is too large."""
    try:
        return _read_folder(path) if path.is_dir() else _read_zip(path)
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise ProjectError(f"{path} cannot be read: {error}") from None


def is_app_folder(path: Path) -> bool:
    """Return whether a folder has a main file that names a root agent or has `agents/` beside it."""
    found = next((path / name for name in APP_FILES if (path / name).is_file()), None)
    if found is None:
        return False
    # Other formats have an `app.yaml`, too.
    return (path / "agents").is_dir() or b"rootAgent" in found.read_bytes()[:MAX_BYTES]


def app_folder(path: Path) -> Path:
    """Return the app's folder if `path` is one of its deployments, else `path`."""
    folder = path.resolve()
    is_deployment = folder.parent.name == "deployments" and not is_app_folder(path)
    return folder.parent.parent if is_deployment else path


def is_cx_app(path: Path) -> bool:
    """Return whether `path` is an exported app, as a folder or zip, or a deployment's folder in one."""
    if path.is_dir():
        return is_app_folder(app_folder(path))
    if path.suffix.lower() != ".zip" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(len(PurePosixPath(name).parts) <= 2 and PurePosixPath(name).name in APP_FILES
                       for name in archive.namelist())  # fmt: skip
    except (OSError, zipfile.BadZipFile):
        return False


def _read_folder(path: Path) -> AppFiles:
    contents: dict[str, bytes] = {}
    remaining = MAX_BYTES
    for place in sorted(path.rglob("*")):
        name = place.relative_to(path)
        if not place.is_file() or "__pycache__" in name.parts or name.parts[0].startswith("."):
            continue
        # A symbolic link must not bring a file of the server into the app.
        if not place.resolve().is_relative_to(path.resolve()):
            raise ProjectError(f"{name.as_posix()}: the link leads out of the app's folder")
        remaining -= place.stat().st_size
        _check_size(remaining, len(contents))
        # The server's own files in this folder, such as records, are not part of the app; workers cannot read them.
        with contextlib.suppress(PermissionError):
            contents[name.as_posix()] = place.read_bytes()
    return AppFiles("", contents)


def _read_zip(path: Path) -> AppFiles:
    contents: dict[str, bytes] = {}
    remaining = MAX_BYTES
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            # Nothing is unpacked to the disk here, but `write` may write files with these names.
            if PurePosixPath(entry.filename).is_absolute() or ".." in PurePosixPath(entry.filename).parts:
                raise ProjectError(f"{entry.filename}: the path leads out of the app's folder")
            # The size is checked by the zip's directory, before the file is read.
            remaining -= entry.file_size
            _check_size(remaining, len(contents))
            contents[entry.filename] = archive.read(entry)
    # An export has everything in one folder; zips made by hand often have the files at their root.
    root = _find_root(contents)
    return AppFiles(root, {name.removeprefix(f"{root}/") if root else name: raw for name, raw in contents.items()})


def _find_root(contents: Mapping[str, bytes]) -> str:
    """Return the single top folder of all files; empty if there is none."""
    if any(name in contents for name in APP_FILES):
        return ""
    tops = {name.partition("/")[0] for name in contents}
    return tops.pop() if len(tops) == 1 else ""


def _check_size(remaining: int, count: int) -> None:
    if remaining < 0 or count >= MAX_FILES:
        raise ProjectError(f"an app has at most {MAX_FILES} files of {MAX_BYTES >> 20} MiB together")


log = get_logger(__name__)
MAX_RECORDING_SECONDS = 300.0
"""Longest recording in seconds; longer ones are not played."""


class Recordings:
    """The recordings of one app; each is converted once."""

    def __init__(self, files: AppFiles) -> None:
        self._files = files
        self._pcm_by_uri: dict[str, bytes | None] = {}

    def pcm(self, uri: str) -> bytes | None:
        """Return a recording as 16-bit mono PCM at the call's rate; None, with a log entry, if it is unusable."""
        # An unusable recording is kept as None, so that it is reported once.
        if uri not in self._pcm_by_uri:
            self._pcm_by_uri[uri] = self._read(uri)
        return self._pcm_by_uri[uri]

    def _read(self, uri: str) -> bytes | None:
        path = recording_path(self._files, uri)
        if path is None:
            log.warning("recording_missing", uri=uri)
            return None
        try:
            return _decode_wav(self._files.contents[path])
        except (wave.Error, EOFError, ValueError) as error:
            log.warning("recording_not_read", uri=uri, error=str(error))
            return None


def recording_path(files: AppFiles, uri: str) -> str | None:
    """Return the app's file for the address of a recording; None if there is none."""
    # Of `gs://bucket/prompts/hold.wav`, the scheme and the bucket are removed.
    bare = uri.partition("://")[2].partition("/")[2] if "://" in uri else uri
    path = PurePosixPath(bare)
    candidates = [path.as_posix(), f"audio/{path.name}", path.name]
    return next((each for each in candidates if each in files.contents), None)


def _decode_wav(data: bytes) -> bytes:
    """Return the audio of a WAV file as 16-bit mono samples at the call's rate. Raises ValueError and `wave.Error`."""
    # Imported here, because only recordings need it, and from Python 3.13 on it is a separate package.
    import audioop

    with wave.open(io.BytesIO(data)) as file:
        rate, width, channels, frames = file.getframerate(), file.getsampwidth(), file.getnchannels(), file.getnframes()
        if channels not in (1, 2) or not 8000 <= rate <= 192_000:
            raise ValueError(f"{channels} channels at {rate} Hz; use one or two channels at 8000 to 192000 Hz")
        if frames > MAX_RECORDING_SECONDS * rate:
            raise ValueError(f"longer than {MAX_RECORDING_SECONDS:g} s")
        pcm = file.readframes(frames)
    if width == 1:
        # Samples of one byte are unsigned in a WAV file, unlike wider ones.
        pcm = audioop.bias(pcm, 1, -128)
    pcm = audioop.lin2lin(pcm, width, 2)
    if channels == 2:
        pcm = audioop.tomono(pcm, 2, 0.5, 0.5)
    return audioop.ratecv(pcm, 2, 1, rate, SAMPLE_RATE, None)[0] if rate != SAMPLE_RATE else pcm
