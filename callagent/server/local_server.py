"""The file by which the command line reaches a running server of the same user: where it listens, and a token.

Only its user can read it: the folder is private, or nobody else can write there, and the file has mode 0600.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from callagent.errors import UserError

_SYSTEM_SERVICE: Final = Path("/run/callagent")
"""Where systemd puts the folder of a service that is named so; root reads it."""
_OTHERS_WRITE: Final = 0o022


@dataclass(frozen=True, slots=True)
class LocalServer:
    url: str
    token: str
    certificate: str = ""
    """The PEM file that it shows, with TLS."""

    def publish(self, name: str) -> Path:
        """Write the file for the server that listens at `name`; its path. Raises `OSError`."""
        folder = _own_folder()
        path, new = folder / _file_name(name), folder / f".{_file_name(name)}.{os.getpid()}"
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump(asdict(self), file)
        new.rename(path)
        return path

    def withdraw(self, path: Path) -> None:
        """Delete the file, if it is still ours."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            if LocalServer(**json.loads(path.read_text())) == self:
                path.unlink()


def find_server(name: str) -> LocalServer | None:
    """The server that listens at `name`, else the one at that port of another address: it may listen on every one.

    None: there is no file of it, or it is another user's. Raises `UserError` for a file that is damaged.
    """
    port = name.rpartition(":")[2]
    for pattern in (glob.escape(_file_name(name)), _file_name(f"*:{port}")):
        for folder in [*_folders(), _SYSTEM_SERVICE]:
            for path in sorted(glob.glob(f"{glob.escape(str(folder))}/{pattern}")):
                if (found := _read(Path(path))) is not None:
                    return found
    return None


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
    """Where this user's files may be, the best place first."""
    variables = os.environ
    places = [Path(variables["RUNTIME_DIRECTORY"].split(":")[0])] if variables.get("RUNTIME_DIRECTORY") else []
    runtime = Path(variables.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    state = variables.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    # A runtime folder is made by the system for who has logged in; not every server is started from there.
    return [*places, runtime / "callagent", Path(state) / "callagent"]


def _own_folder() -> Path:
    """The first place that can be used. Raises `OSError`."""
    problem = OSError("there is no folder for it")
    folders = _folders()
    for folder in folders:
        try:
            # Only the user's own state folder is ours to begin; a runtime folder is there or it is not.
            folder.mkdir(mode=0o700, parents=folder == folders[-1], exist_ok=True)
            found = folder.stat()
        except OSError as error:
            problem = error
            continue
        if found.st_uid == os.getuid() and not found.st_mode & _OTHERS_WRITE:
            return folder
        problem = PermissionError(f"{folder} is not this user's own folder")
    raise problem
