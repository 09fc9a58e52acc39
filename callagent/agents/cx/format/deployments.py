"""What of an export is served: the app as exported, a deployment's version, or several where it splits traffic.

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

FOLDER = "deployments"
DRAFT = "-"
"""The version name that stands for the app as it is exported."""
_SPLITS = ("", "RUNNING", "STATE_UNSPECIFIED")
"""States of an experiment in which traffic is split."""
_OBJECTS = ("agents", "tools", "toolsets", "guardrails", "examples")


@dataclass(frozen=True, slots=True)
class ServedApp:
    """A version of an app that some or all of the calls get."""

    variant: str
    """Its name in records; empty: there is no other version."""
    percent: int
    app: CxApp
    reader: AppReader
    deployment: str = ""
    """The deployment that serves it; empty: none."""


@dataclass(frozen=True, slots=True)
class AppExport:
    """The files of an export, read once, and which of its deployments is served."""

    files: AppFiles
    root: Path
    """The app's folder, or its zip."""
    deployment: str = ""
    """The folder of the deployment that is served; empty: the app is served as it is exported."""

    @property
    def name(self) -> str:
        """The app's name where its main file has none: that of its folder or zip."""
        return self.root.stem

    @property
    def path(self) -> Path:
        """The folder of what is served: the app's or the deployment's."""
        return self.root / FOLDER / self.deployment if self.deployment else self.root

    def deployments(self) -> dict[str, str]:
        """Return the folders of all deployments by folder, last part of the resource name, and display name."""
        return _Export(self.reader(Findings()), self.name).names()

    def served(self, findings: Findings) -> list[ServedApp]:
        """Return what is served; empty: there are errors. Raises `ProjectError` when a version holds no app."""
        reader = self.reader(findings)
        if self.deployment:
            return _Export(reader, self.name).deployment(self.deployment)
        app = reader.read(self.name)
        return [] if app is None else [ServedApp("", 100, app, reader)]

    def load(self) -> list[ServedApp]:
        """Return what is served. Raises `ProjectError` that lists all that is wrong with its files."""
        findings = Findings()
        served = self.served(findings)
        errors = findings.report().errors
        if not served or errors:
            listed = "\n".join(f"  {error}" for error in errors)
            raise ProjectError(f"The app in {self.path} cannot be loaded:\n{listed}")
        return served

    def reader(self, findings: Findings) -> AppReader:
        return AppReader(self.files, findings)


def deployment_of(path: Path) -> tuple[Path, str] | None:
    """Return the app's folder and the deployment that a path leads to; None: it leads to no deployment."""
    whole = path.resolve()
    if whole.parent.name != FOLDER or not whole.is_dir() or is_app_folder(whole):
        return None
    return (whole.parent.parent, whole.name) if is_app_folder(whole.parent.parent) else None


def read_export(path: Path) -> AppExport:
    """Read the files of an app or deployment. Raises `ProjectError` when they cannot be read at all."""
    placed = deployment_of(path)
    if placed is None:
        return AppExport(read_files(path), path)
    root, name = placed
    return AppExport(read_files(root), root, name)


def choose_version(served: Sequence[ServedApp], call_id: str) -> ServedApp:
    """Return the version that a call gets: always the same for an identifier, and each for its share of all calls."""
    # By the identifier and not by chance: a session that is opened anew, or a worker that is replaced, gets the same.
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big") % 100
    for each in served:
        number -= each.percent
        if number < 0:
            return each
    return served[-1]


def check_deployments(reader: AppReader) -> None:
    """Check the deployments of an app that is itself checked as it is exported."""
    export = _Export(reader, "")
    for name, _ in reader.folders(FOLDER):
        export.shares(name)


class _Export:
    """An app with its versions and deployments."""

    def __init__(self, reader: AppReader, name: str) -> None:
        self._reader = reader
        self._name = name

    def names(self) -> dict[str, str]:
        folders = dict(self._reader.folders(FOLDER))
        found: dict[str, str] = {}
        for folder, file in folders.items():
            data = self._reader.document(file) or {}
            for named in (str(data.get("name") or "").rsplit("/", 1)[-1], str(data.get("displayName") or "")):
                found.setdefault(named, folder)
        # A folder's own name wins over a display name of another deployment that is the same.
        return {**found, **{folder: folder for folder in folders}}

    def deployment(self, name: str) -> list[ServedApp]:
        shares = self.shares(name)
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

    def shares(self, name: str) -> _Shares | None:
        """Return how a deployment splits its traffic; None, with errors: it cannot be served."""
        endings = ("json", "yaml", "yml")
        files = [f"{FOLDER}/{name}/{name}.{ending}" for ending in endings]
        file = next((each for each in files if each in self._reader.files.contents), None)
        if file is None:
            self._reader.error_at(CheckRule.UNREADABLE, f"{FOLDER}/{name}", 1, f"{files[0]} is missing")
            return None
        data = self._reader.document(file)
        if data is None:
            return None
        # The deployment's own version gets the calls that the experiment leaves over.
        whole = self._version_named(file, "appVersion", data.get("appVersion"))
        rows = self._traffic_split(file, data)
        rest = 100 - sum(percent for _, percent, _ in rows)
        if whole is None or rest < 0 or any(version is None for *_, version in rows):
            if rest < 0:
                message = "'trafficPercentage' adds up to more than 100: lower the shares"
                self._reader.error(CheckRule.DEPLOYMENT, file, "trafficAllocations", message)
            return None
        known = [(variant, percent, version) for variant, percent, version in rows if version is not None]
        # In records the draft has the deployment's name, because `-` says nothing there.
        if rest or not known:
            known.append((name if whole == DRAFT else whole, rest, whole))
        profile = data.get("channelProfile")
        return _Shares(known, profile if isinstance(profile, Mapping) else {})

    def _traffic_split(self, file: str, data: JsonObject) -> list[tuple[str, int, str | None]]:
        """Return variant, percent and version of each share; version None: an error has been noted."""
        experiment = data.get("experimentConfig")
        release = experiment.get("versionRelease") if isinstance(experiment, Mapping) else None
        if not isinstance(release, Mapping) or str(release.get("state") or "") not in _SPLITS:
            return []
        rows = []
        for each in self._reader.objects(file, release, "trafficAllocations"):
            version = self._version_named(file, "trafficAllocations", each.get("appVersion"))
            percent = each.get("trafficPercentage") or 0
            if not isinstance(percent, int) or not 0 <= percent <= 100:
                message = f"'trafficPercentage' is {percent!r}; a whole number from 0 to 100 is expected"
                self._reader.error(CheckRule.DEPLOYMENT, file, "trafficPercentage", message)
                version, percent = None, 0
            rows.append((str(each.get("id") or version or ""), percent, version))
        return rows

    def _version_named(self, file: str, key: str, named: JsonValue) -> str | None:
        """Return a version's name, `DRAFT` where none is named; None, with an error: there is no such version."""
        name = str(named or DRAFT).rsplit("/", 1)[-1]
        if name == DRAFT or any(each.startswith(f"versions/{name}/") for each in self._reader.files.contents):
            return name
        message = f"version '{name}' is not in versions/: export it, or name another one"
        self._reader.error(CheckRule.DEPLOYMENT, file, key, message)
        return None

    def _version_reader(self, version: str) -> AppReader:
        """Return the reader of a version. Raises `ProjectError` when the version holds no app."""
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
class _Shares:
    rows: Sequence[tuple[str, int, str]]
    """Variant, percent and version; the percentages add up to 100."""
    profile: JsonObject


def _unpack_snapshot(snapshot: JsonValue, place: str) -> dict[str, bytes]:
    """Return the API's AppSnapshot as the files of an export, with texts and Python in place. Raises `ProjectError`."""
    if not isinstance(snapshot, Mapping) or not isinstance(snapshot.get("app"), Mapping):
        raise ProjectError(f"{place} holds neither an app nor the snapshot of one")
    contents = {APP_FILES[0]: json.dumps(snapshot["app"]).encode()}
    for kind in _OBJECTS:
        for each in objects_at(snapshot, kind):
            name = PurePosixPath(str(each.get("name") or each.get("displayName") or "")).name
            if name:
                contents[f"{kind}/{name}/{name}.json"] = json.dumps(each).encode()
    return contents
