"""The served versions of an export: the exported app, the version of a deployment, or several with split traffic.

A deployment is `deployments/NAME/NAME.json` of the export (the API's Deployment), served as the project
`APP/deployments/NAME`. A version is a whole app below `versions/NAME/`, or the API's AppVersion with its snapshot in
`versions/NAME/NAME.json`; the version `-` is the app as it stands.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from callagent.agents.cx.format.app import CxApp
from callagent.agents.cx.format.document_reader import CheckRule
from callagent.agents.cx.format.files import APP_FILES, AppFiles, is_app_folder, read_files
from callagent.agents.cx.format.load import AppReader
from callagent.agents.kernel import Findings
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, JsonValue, objects_at

DEPLOYMENTS_FOLDER = "deployments"
DRAFT = "-"
"""The version name that stands for the app as it is exported."""
_SPLIT_STATES = ("", "RUNNING", "STATE_UNSPECIFIED")
"""States of an experiment in which traffic is split."""
_OBJECT_KINDS = ("agents", "tools", "toolsets", "guardrails", "examples")


@dataclass(frozen=True, slots=True)
class ServedApp:
    """A version of an app that some or all of the calls get."""

    variant: str
    """Its name in records; empty if it is the only version."""
    percent: int
    app: CxApp
    reader: AppReader
    deployment: str = ""
    """The deployment that serves it; empty if none does."""


@dataclass(frozen=True, slots=True)
class AppExport:
    """The files of an export, and the deployment of it that is served."""

    files: AppFiles
    root: Path
    """The app's folder, or its zip."""
    deployment: str = ""
    """The folder of the served deployment; empty if the app is served as it is exported."""

    @property
    def name(self) -> str:
        """The name of the folder or zip, which is the app's name if its main file has none."""
        return self.root.stem

    @property
    def path(self) -> Path:
        """The folder of the app, or of the deployment if one is served."""
        return self.root / DEPLOYMENTS_FOLDER / self.deployment if self.deployment else self.root

    def deployments(self) -> dict[str, str]:
        """Return the folders of all deployments by folder, last part of the resource name, and display name."""
        return _ExportedVersions(self.reader(Findings()), self.name).folders_by_name()

    def served(self, findings: Findings) -> list[ServedApp]:
        """Return the served versions, none if there are errors. Raises `ProjectError` if a version has no app."""
        reader = self.reader(findings)
        if self.deployment:
            return _ExportedVersions(reader, self.name).deployment(self.deployment)
        app = reader.read(self.name)
        return [] if app is None else [ServedApp("", 100, app, reader)]

    def load(self) -> list[ServedApp]:
        """Return the served versions. Raises `ProjectError` that lists all errors in their files."""
        findings = Findings()
        served = self.served(findings)
        errors = findings.report().errors
        if not served or errors:
            listed = "\n".join(f"  {error}" for error in errors)
            raise ProjectError(f"The app in {self.path} cannot be loaded:\n{listed}")
        return served

    def reader(self, findings: Findings) -> AppReader:
        return AppReader(self.files, findings)


def find_deployment(path: Path) -> tuple[Path, str] | None:
    """Return the app's folder and the deployment's name if the path is a deployment's folder, else None."""
    folder = path.resolve()
    if folder.parent.name != DEPLOYMENTS_FOLDER or not folder.is_dir() or is_app_folder(folder):
        return None
    return (folder.parent.parent, folder.name) if is_app_folder(folder.parent.parent) else None


def read_export(path: Path) -> AppExport:
    """Read the files of an app or deployment. Raises `ProjectError` if they cannot be read at all."""
    found = find_deployment(path)
    if found is None:
        return AppExport(read_files(path), path)
    root, name = found
    return AppExport(read_files(root), root, name)


def choose_version(served: Sequence[ServedApp], call_id: str) -> ServedApp:
    """Return the version of a call: the same for the same identifier, and each version for its share of all calls."""
    # The identifier decides, so that a session that is reopened or whose worker is replaced keeps its version.
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big") % 100
    for each in served:
        number -= each.percent
        if number < 0:
            return each
    return served[-1]


def check_deployments(reader: AppReader) -> None:
    """Report errors in the files of the app's deployments."""
    export = _ExportedVersions(reader, "")
    for name, _ in reader.folders(DEPLOYMENTS_FOLDER):
        export.read_shares(name)


class _ExportedVersions:
    """The versions and deployments of an exported app."""

    def __init__(self, reader: AppReader, name: str) -> None:
        self._reader = reader
        self._name = name

    def folders_by_name(self) -> dict[str, str]:
        folders = dict(self._reader.folders(DEPLOYMENTS_FOLDER))
        found: dict[str, str] = {}
        for folder, file in folders.items():
            data = self._reader.document(file) or {}
            for named in (str(data.get("name") or "").rsplit("/", 1)[-1], str(data.get("displayName") or "")):
                found.setdefault(named, folder)
        # A folder's name takes precedence over the same display name of another deployment.
        return {**found, **{folder: folder for folder in folders}}

    def deployment(self, name: str) -> list[ServedApp]:
        shares = self.read_shares(name)
        if shares is None:
            return []
        profile = shares.profile
        served = []
        for variant, percent, version in shares.rows:
            reader = self._version_reader(version)
            app = reader.read(self._name)
            if app is not None:
                # As on the platform, the deployment's channel profile replaces the app's own.
                data = {**app.data, "defaultChannelProfile": profile} if profile else app.data
                served.append(ServedApp(variant, percent, replace(app, data=data), reader, name))
        return served

    def read_shares(self, name: str) -> _TrafficShares | None:
        """Return how a deployment splits its traffic; report errors and return None if it cannot be served."""
        endings = ("json", "yaml", "yml")
        files = [f"{DEPLOYMENTS_FOLDER}/{name}/{name}.{ending}" for ending in endings]
        file = next((each for each in files if each in self._reader.files.contents), None)
        if file is None:
            self._reader.error_at(CheckRule.UNREADABLE, f"{DEPLOYMENTS_FOLDER}/{name}", 1, f"{files[0]} is missing")
            return None
        data = self._reader.document(file)
        if data is None:
            return None
        # The deployment's own version gets the calls that the experiment does not allocate.
        own_version = self._find_version(file, "appVersion", data.get("appVersion"))
        rows = self._traffic_split(file, data)
        remainder = 100 - sum(percent for _, percent, _ in rows)
        if own_version is None or remainder < 0 or any(version is None for *_, version in rows):
            if remainder < 0:
                message = "'trafficPercentage' adds up to more than 100: lower the shares"
                self._reader.error(CheckRule.DEPLOYMENT, file, "trafficAllocations", message)
            return None
        known = [(variant, percent, version) for variant, percent, version in rows if version is not None]
        # In records the draft has the deployment's name, because `-` would be meaningless there.
        if remainder or not known:
            known.append((name if own_version == DRAFT else own_version, remainder, own_version))
        profile = data.get("channelProfile")
        return _TrafficShares(known, profile if isinstance(profile, Mapping) else {})

    def _traffic_split(self, file: str, data: JsonObject) -> list[tuple[str, int, str | None]]:
        """Return variant, percent and version of each share; the version is None if an error was reported."""
        experiment = data.get("experimentConfig")
        release = experiment.get("versionRelease") if isinstance(experiment, Mapping) else None
        if not isinstance(release, Mapping) or str(release.get("state") or "") not in _SPLIT_STATES:
            return []
        rows = []
        for each in self._reader.objects(file, release, "trafficAllocations"):
            version = self._find_version(file, "trafficAllocations", each.get("appVersion"))
            percent = each.get("trafficPercentage") or 0
            if not isinstance(percent, int) or not 0 <= percent <= 100:
                message = f"'trafficPercentage' is {percent!r}; a whole number from 0 to 100 is expected"
                self._reader.error(CheckRule.DEPLOYMENT, file, "trafficPercentage", message)
                version, percent = None, 0
            rows.append((str(each.get("id") or version or ""), percent, version))
        return rows

    def _find_version(self, file: str, key: str, named: JsonValue) -> str | None:
        """Return a version's name, `DRAFT` if none is named; report an error and return None if it does not exist."""
        name = str(named or DRAFT).rsplit("/", 1)[-1]
        if name == DRAFT or any(each.startswith(f"versions/{name}/") for each in self._reader.files.contents):
            return name
        message = f"version '{name}' is not in versions/: export it, or name another one"
        self._reader.error(CheckRule.DEPLOYMENT, file, key, message)
        return None

    def _version_reader(self, version: str) -> AppReader:
        """Return the reader of a version. Raises `ProjectError` if the version has no app."""
        if version == DRAFT:
            return self._reader
        place = f"versions/{version}/"
        contents = {
            file.removeprefix(place): raw for file, raw in self._reader.files.contents.items() if file.startswith(place)
        }
        if not any(name in contents for name in APP_FILES):
            main = next((each for each in contents if each.startswith(f"{version}.")), "")
            data = self._reader.document(place + main) if main else None
            contents = _unpack_snapshot((data or {}).get("snapshot"), place)
        return AppReader(AppFiles("", contents), self._reader.findings, place)


@dataclass(frozen=True, slots=True)
class _TrafficShares:
    """The versions of a deployment with their shares of the traffic."""

    rows: Sequence[tuple[str, int, str]]
    """Variant, percent and version; the percentages add up to 100."""
    profile: JsonObject
    """The deployment's channel profile; empty if it has none."""


def _unpack_snapshot(snapshot: JsonValue, place: str) -> dict[str, bytes]:
    """Return the API's AppSnapshot as the files of an export, which contain texts and Python. Raises `ProjectError`."""
    if not isinstance(snapshot, Mapping) or not isinstance(snapshot.get("app"), Mapping):
        raise ProjectError(f"{place} holds neither an app nor the snapshot of one")
    contents = {APP_FILES[0]: json.dumps(snapshot["app"]).encode()}
    for kind in _OBJECT_KINDS:
        for each in objects_at(snapshot, kind):
            name = PurePosixPath(str(each.get("name") or each.get("displayName") or "")).name
            if name:
                contents[f"{kind}/{name}/{name}.json"] = json.dumps(each).encode()
    return contents
