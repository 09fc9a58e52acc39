"""The file by which the command line reaches a running server of the same user: where it listens, and a token.

Only its user can read it: the folder is private, or nobody else can write there, and the file has mode 0600.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from callagent.errors import UserError

_SYSTEM_SERVICE: Final = Path("/run/callagent")
"""The runtime folder that systemd makes for a service of this name; root may read it."""
_OTHERS_WRITE: Final = 0o022


@dataclass(frozen=True, slots=True)
class LocalServer:
    """How the command line reaches a running server."""

    url: str
    token: str
    certificate: str = ""
    """Path of the PEM file with which it proves itself over TLS; empty without TLS."""

    def publish(self, name: str) -> Path:
        """Write the file of the server that listens at `name`; return its path. Raises `OSError`."""
        folder = _own_folder()
        path, new = folder / _file_name(name), folder / f".{_file_name(name)}.{os.getpid()}"
        # The file gets its name once it is complete, so that a reader never sees half of it or a mode other than 0600.
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump(asdict(self), file)
        new.rename(path)
        return path

    def withdraw(self, path: Path) -> None:
        """Delete the file, unless another server has replaced it meanwhile."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            if LocalServer(**json.loads(path.read_text())) == self:
                path.unlink()


def find_server(name: str) -> LocalServer | None:
    """Return the server that listens at `name`, or else one at the same port of another address, such as 0.0.0.0.

    None if no file names it, or if the file is another user's. Raises `UserError` for a file that is damaged.
    """
    return next((found for path in _files_for(name) if (found := _read(path)) is not None), None)


def _files_for(name: str) -> Iterator[Path]:
    """Yield the files that may be of the server at `name`, the best match first."""
    port = name.rpartition(":")[2]
    for pattern in (glob.escape(_file_name(name)), _file_name(f"*:{port}")):
        for folder in [*_folders(), _SYSTEM_SERVICE]:
            yield from (Path(path) for path in sorted(glob.glob(f"{glob.escape(str(folder))}/{pattern}")))


def _read(path: Path) -> LocalServer | None:
    try:
        return LocalServer(**json.loads(path.read_text()))
    except (FileNotFoundError, PermissionError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"the token file {path} cannot be read: {error}; start the server again") from None


def _file_name(name: str) -> str:
    return f"http-{name}.json"


def _folders() -> list[Path]:
    """Return the folders in which this user's files may be, the best one first."""
    variables = os.environ
    places = [Path(variables["RUNTIME_DIRECTORY"].split(":")[0])] if variables.get("RUNTIME_DIRECTORY") else []
    runtime = Path(variables.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    state = variables.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    # The system makes a runtime folder for users who have logged in; a server may run without one.
    return [*places, runtime / "callagent", Path(state) / "callagent"]


def _own_folder() -> Path:
    """Return the first folder that can be used. Raises `OSError`."""
    problem = OSError("there is no folder for the token file")
    folders = _folders()
    for folder in folders:
        try:
            # Only the user's state folder, the last one, is made with its parents: a runtime folder is the system's.
            folder.mkdir(mode=0o700, parents=folder == folders[-1], exist_ok=True)
            found = folder.stat()
        except OSError as error:
            problem = error
            continue
        # In a folder where others may write, a file of theirs could lead the command line to their server.
        if found.st_uid == os.getuid() and not found.st_mode & _OTHERS_WRITE:
            return folder
        problem = PermissionError(f"{folder} is not this user's own folder")
    raise problem
