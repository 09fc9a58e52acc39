"""Numbers that asked for no more text messages (STOP), until they ask for them again (START)."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

from callagent.log import get_logger

log = get_logger(__name__)
STOP = frozenset({"stop", "stopall", "unsubscribe", "cancel", "end", "quit", "optout", "revoke"})
START = frozenset({"start", "unstop", "yes"})


@dataclass(slots=True)
class OptOuts:
    """Opt-outs in a file of hashed numbers; the last line of a number counts. No file: until the server ends."""

    path: Path | None = None
    _out: set[str] = field(default_factory=set)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        for line in self.path.read_text(encoding="ascii", errors="replace").splitlines():
            self._note(line[1:], out=line.startswith("-"))

    def __contains__(self, number: object) -> bool:
        return _hashed(str(number)) in self._out

    def take(self, number: str, text: str) -> bool:
        """Note an incoming text message; return whether it was STOP or START. Blocks: run it in a thread."""
        word = re.sub(r"\W", "", text).lower()
        if word not in STOP | START:
            return False
        out, hashed = word in STOP, _hashed(number)
        with self._writing:
            self._note(hashed, out=out)
            self._keep(f"{'-' if out else '+'}{hashed}\n")
        log.info("text_messages_opted", out=out)
        return True

    def _note(self, hashed: str, *, out: bool) -> None:
        (self._out.add if out else self._out.discard)(hashed)

    def _keep(self, line: str) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.open("a", encoding="ascii") as file:
                file.write(line)
        except OSError as error:
            log.error("opt_out_not_kept", error=str(error))


def _hashed(number: str) -> str:
    """Return the hash that stands for a number: the file must not tell whose numbers they are."""
    return hashlib.sha256(re.sub(r"[^\d+]", "", number).encode()).hexdigest()[:40]
