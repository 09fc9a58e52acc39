"""`real_time_configuration/`: settings that operators change while calls run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from callagent.agents.kernel import Findings
from callagent.log import get_logger

log = get_logger(__name__)
_FOLDERS = {"live": "live", "pre-release": "pre_release"}


def check_real_time(project: Path, findings: Findings) -> None:
    """Each environment's data against its schema (JSON Schema, draft 7)."""
    for folder in ("draft_and_sandbox", "pre_release", "live"):
        place = f"real_time_configuration/{folder}"
        schema, data = (_json(project, f"{place}/{name}.json", findings) for name in ("schema", "data"))
        if data is not None and not isinstance(data, dict):
            findings.error(f"{place}/data.json", 1, "The file should hold one JSON object.")
        elif schema is not None and data is not None:
            _validate(schema, data, place, findings)


def _json(project: Path, file: str, findings: Findings) -> Any:
    try:
        return json.loads((project / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        findings.error(file, error.lineno, f"Not valid JSON: {error.msg}.")
    except (OSError, UnicodeDecodeError) as error:
        findings.error(file, 1, f"The file cannot be read: {error}.")
    return None


def _validate(schema: Any, data: Any, place: str, findings: Findings) -> None:
    from jsonschema import Draft7Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft7Validator.check_schema(schema)
    except SchemaError as error:
        findings.error(f"{place}/schema.json", 1, f"Not a valid JSON schema: {error.message}.")
        return
    for problem in Draft7Validator(schema).iter_errors(data):
        where = ".".join(str(part) for part in problem.absolute_path) or "the object"
        findings.error(f"{place}/data.json", 1, f"{where}: {problem.message}.")


class RealTimeConfiguration:
    """The data of each environment, read again when its file changes."""

    def __init__(self, project: Path) -> None:
        self._folder = project / "real_time_configuration"
        self._read: dict[str, tuple[float, dict[str, Any]]] = {}

    def folder(self, environment: str) -> Path:
        """Where `schema.json` and `data.json` of an environment are."""
        return self._folder / _FOLDERS.get(environment, "draft_and_sandbox")

    def current(self, environment: str) -> dict[str, Any]:
        """An empty map where the project has none. A file that cannot be read leaves what was read before."""
        path = self.folder(environment) / "data.json"
        known = self._read.get(environment)
        try:
            modified = path.stat().st_mtime
            if known is None or known[0] != modified:
                data = json.loads(path.read_text(encoding="utf-8"))
                known = (modified, data if isinstance(data, dict) else {})
                self._read[environment] = known
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("real_time_configuration_unreadable", file=str(path), error=str(error))
        return known[1] if known else {}
