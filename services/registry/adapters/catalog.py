"""The model versions on disk, each verified before anyone may load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import artifacts, log
from services.registry.core.errors import DamagedArtifactError, UnknownVersionError

if TYPE_CHECKING:
    from pathlib import Path

_log = log.get("catalog")


@dataclass(frozen=True)
class Version:
    """A verified version and where it lies."""

    manifest: artifacts.Manifest
    directory: Path
    sealed_at_ns: int

    @property
    def uri(self) -> str:
        """The directory as a file URI."""
        return self.directory.as_uri()


class Catalog:
    """Every verified version below one directory. Its blocking methods read all bytes of an artifact."""

    def __init__(self, models_dir: Path) -> None:
        self._models_dir = models_dir.resolve()
        self._versions: dict[str, Version] = {}
        self.refused = 0

    @property
    def count(self) -> int:
        """How many versions are verified."""
        return len(self._versions)

    def scan(self) -> None:
        """Verify what is there (blocking); a damaged version is logged and left out, the others serve."""
        for directory in artifacts.versions(self._models_dir):
            try:
                self._admit(directory)
            except artifacts.ArtifactError as error:
                self.refused += 1
                place = f"{directory.parent.name}@{directory.name}"
                _log.error("model version refused", model_version=place, reason=str(error))

    def register(self, model_version: str) -> Version:
        """Verify one version (blocking) and make it known."""
        try:
            directory = artifacts.locate(self._models_dir, model_version)
        except ValueError as error:
            raise UnknownVersionError(model_version[:200]) from error
        if not directory.is_dir():
            raise UnknownVersionError(model_version)
        try:
            return self._admit(directory)
        except artifacts.ArtifactError as error:
            self.refused += 1
            self._versions.pop(model_version, None)
            _log.error("model version refused", model_version=model_version, reason=str(error))
            raise DamagedArtifactError(str(error)) from error

    def get(self, model_version: str) -> Version:
        """A verified version."""
        if model_version not in self._versions:
            raise UnknownVersionError(model_version[:200])
        return self._versions[model_version]

    def all(self) -> list[Version]:
        """Every verified version, by name, then age."""
        return sorted(
            self._versions.values(), key=lambda version: (version.manifest.name, version.sealed_at_ns)
        )

    def by_name(self) -> dict[str, list[str]]:
        """Each name's versions, oldest first."""
        names: dict[str, list[str]] = {}
        for version in self.all():
            names.setdefault(version.manifest.name, []).append(version.manifest.model_version)
        return names

    def _admit(self, directory: Path) -> Version:
        manifest = artifacts.verify(directory)
        if directory != artifacts.locate(self._models_dir, manifest.model_version):
            raise artifacts.ArtifactError(
                directory / artifacts.MANIFEST, "belongs to another name or version"
            )
        version = Version(manifest, directory, (directory / artifacts.MANIFEST).stat().st_mtime_ns)
        self._versions[manifest.model_version] = version
        return version
