"""Where the small model's engine and weights are. The package's own Python, which reports its use, is never run."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from callagent.errors import UserError

_PACKAGE = "needle"
_WEIGHTS = "needle3.cact"
WEIGHTS_SHA256 = "c9d915eca282ed42d1a09b143b592adb4cc6744ffe2d294adf5cfc5548170c38"


@dataclass(frozen=True, slots=True)
class NeedleFiles:
    library: Path
    weights: Path
    sha256: str = WEIGHTS_SHA256


def find_weights() -> NeedleFiles:
    """Those that the package brought. Raises `UserError`."""
    # Finding a package's place does not import it.
    found = importlib.util.find_spec(_PACKAGE)
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        libraries = sorted(folder.glob("libneedle3.*"))
        if libraries and (folder / _WEIGHTS).is_file():
            return NeedleFiles(libraries[0], folder / _WEIGHTS)
    raise UserError("the model 'embedded' needs a package: pip install 'callagent[embedded]'; 'rules' needs none")
