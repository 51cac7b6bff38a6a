"""Model artifacts: an immutable directory per version, sealed by a manifest of SHA-256 digests.

`<models_dir>/<name>/<version>/` holds config.json (Hugging Face keys), model.safetensors, tokenizer.json
(its post-processor adds BOS to a raw prompt where the model wants one), chat_template.jinja (optional)
and manifest.json. The version is a digest of the manifest, hence of every byte beside it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"

# Also a NATS subject token or several, hence no dot at an end or beside another.
_NAME_PATTERN = r"[a-zA-Z0-9][a-zA-Z0-9_-]*(?:\.[a-zA-Z0-9_-]+)*"
_NAME_CHARS = 128
_STAGING = ".staging-"
_DIGEST_CHARS = 12


class ArtifactError(Exception):
    """An artifact that must not be used; `file` is the one at fault."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file


class FileDigest(BaseModel):
    """Size and SHA-256 of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class ManifestMeta(BaseModel):
    """What an importer knows about a model besides its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{_NAME_PATTERN}$", max_length=_NAME_CHARS)
    family: str
    context_length: int = Field(gt=0)
    source: str
    licence: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


class Manifest(ManifestMeta):
    """The seal of one model version."""

    version: str = Field(pattern=r"^[0-9a-f]{12}$")
    tokenizer_version: str
    files: dict[str, FileDigest]

    @property
    def model_version(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(digest.bytes for digest in self.files.values())


def decode_json(text: str | bytes) -> Any:  # noqa: ANN401 -- what JSON may hold
    """Decode a file that may be damaged; nesting beyond reason is a ValueError like every other fault."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_name(text: str) -> bool:
    """Whether callers may name a model so."""
    return len(text) <= _NAME_CHARS and re.fullmatch(_NAME_PATTERN, text) is not None


def parse_model_version(model_version: str) -> tuple[str, str]:
    """Split `name@version`; raises ValueError for anything else, path tricks included."""
    name, _, version = model_version.partition("@")
    if not is_name(name) or not re.fullmatch(rf"[0-9a-f]{{{_DIGEST_CHARS}}}", version):
        raise ValueError(f"{model_version[:200]!r} is not `name@version`")
    return name, version


def locate(models_dir: Path, model_version: str) -> Path:
    """Where a version lives below `models_dir`."""
    name, version = parse_model_version(model_version)
    return models_dir / name / version


def write_manifest(directory: Path, meta: ManifestMeta) -> Manifest:
    """Digest every file of `directory` and seal them."""
    files = {path.name: _digest_file(path) for path in sorted(directory.iterdir()) if path.name != MANIFEST}
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if name not in files:
            raise ArtifactError(directory / name, "is missing")
    document = meta.model_dump(mode="json") | {
        "tokenizer_version": files[TOKENIZER].sha256[:_DIGEST_CHARS],
        "files": {name: digest.model_dump() for name, digest in files.items()},
    }
    document["version"] = _version_of(document)
    (directory / MANIFEST).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return Manifest.model_validate(document)


def load_manifest(directory: Path) -> Manifest:
    """Read a manifest; refuses one that was altered or that lies in another version's place."""
    path = directory / MANIFEST
    try:
        document = decode_json(path.read_bytes())
        manifest = Manifest.model_validate(document)
    except FileNotFoundError as error:
        raise ArtifactError(path, "is missing") from error
    except (OSError, ValueError, ValidationError) as error:
        raise ArtifactError(path, f"cannot be read: {error}") from error
    if manifest.version != _version_of(document):
        raise ArtifactError(path, "was altered: its digest is not its version")
    return manifest


def verify(directory: Path, names: Iterable[str] | None = None) -> Manifest:
    """Check files against the manifest by SHA-256: the given names, or all and no others beside them."""
    manifest = load_manifest(directory)
    if names is None:
        names = manifest.files
        for path in directory.iterdir():
            if path.name != MANIFEST and path.name not in manifest.files:
                raise ArtifactError(path, "is not in the manifest")
    for name in names:
        _verify_file(directory / name, manifest.files.get(name))
    return manifest


@contextlib.contextmanager
def staging(models_dir: Path) -> Iterator[Path]:
    """A directory to build an artifact in; whatever is left in it at the end is removed."""
    models_dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=_STAGING, dir=models_dir))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def publish(staged: Path, models_dir: Path, meta: ManifestMeta) -> Manifest:
    """Seal a staged directory and move it into place in one step; an existing version stays as it is."""
    manifest = write_manifest(staged, meta)
    target = locate(models_dir, manifest.model_version)
    target.parent.mkdir(exist_ok=True)
    staged.chmod(0o755)
    for path in (*staged.iterdir(), staged):
        _fsync(path)
    try:
        staged.rename(target)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return verify(target)
    _fsync(target.parent)
    return manifest


def versions(models_dir: Path) -> list[Path]:
    """Every version's directory below `models_dir`, unverified, oldest import first within a name."""
    found = [path.parent for path in models_dir.glob(f"*/*/{MANIFEST}")]
    return sorted(found, key=lambda path: (path.parent.name, (path / MANIFEST).stat().st_mtime_ns, path.name))


def _verify_file(path: Path, expected: FileDigest | None) -> None:
    if expected is None:
        raise ArtifactError(path, "is not in the manifest")
    try:
        actual = _digest_file(path)
    except OSError as error:
        raise ArtifactError(path, f"cannot be read: {error.strerror}") from error
    if actual.bytes != expected.bytes:
        raise ArtifactError(path, f"has {actual.bytes} bytes, the manifest says {expected.bytes}")
    if actual.sha256 != expected.sha256:
        raise ArtifactError(
            path, f"was altered: SHA-256 {actual.sha256}, the manifest says {expected.sha256}"
        )


def _digest_file(path: Path) -> FileDigest:
    with path.open("rb") as file:
        return FileDigest(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=file.tell())


def _version_of(document: dict[str, Any]) -> str:
    sealed = {key: value for key, value in document.items() if key not in {"name", "version"}}
    canonical = json.dumps(sealed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_CHARS]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
