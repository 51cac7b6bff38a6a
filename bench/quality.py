"""What a precision costs in quality: perplexity, and how often the likeliest token is float32's.

The text is `data/jargon.txt`: the front matter of the Jargon File 4.4.7 (29 Dec 2003), in the public domain,
with its lines joined to paragraphs. It is cut into windows that are each read from an empty context.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from services.worker.engine import EngineConfig, load_engine
from services.worker.engine.batch import Batch

if TYPE_CHECKING:
    import torch

TEXT = Path(__file__).parent / "data" / "jargon.txt"
WINDOW, PAGE = 512, 16


class Reader:
    """Reads windows of tokens with one engine."""

    def __init__(self, artifact: Path, dtype: str) -> None:
        config = EngineConfig(dtype=dtype, page_count=WINDOW // PAGE)  # type: ignore[arg-type]
        self.engine = load_engine(artifact, config)

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """Log-probabilities after every token: [tokens, vocabulary]."""
        count = len(ids)
        at = np.arange(count)
        pages = np.arange(-(-count // PAGE))[None]
        batch = Batch(np.array(ids), at, at, np.array([count]), np.array([count]), pages, at)
        return self.engine.forward(batch).log_softmax(-1)  # type: ignore[attr-defined, no-any-return]


class Tally:
    """What one precision came to so far."""

    def __init__(self) -> None:
        self.tokens = self.agreed = 0
        self.nats = 0.0

    def add(self, logprobs: torch.Tensor, ids: list[int], likeliest: torch.Tensor) -> None:
        """Count one window; `likeliest` are float32's tokens."""
        self.tokens += len(ids) - 1
        self.agreed += int((logprobs.argmax(-1) == likeliest)[:-1].sum())
        self.nats -= sum(logprobs[at, token].item() for at, token in enumerate(ids[1:]))

    @property
    def perplexity(self) -> float:
        """Of the tokens after each window's first."""
        return math.exp(self.nats / self.tokens)


def main() -> None:
    """Print one line a precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"])
    parser.add_argument("--tokens", type=int, default=20_480)
    asked = parser.parse_args()
    ids = (
        Tokenizer.from_file(str(asked.artifact / "tokenizer.json"))
        .encode(TEXT.read_text())
        .ids[: asked.tokens]
    )
    readers = {dtype: Reader(asked.artifact, dtype) for dtype in ("float32", *asked.dtypes)}
    tallies = {dtype: Tally() for dtype in readers}
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[start : start + WINDOW]
        likeliest = None
        for dtype, reader in readers.items():
            logprobs = reader.logprobs(window)
            likeliest = logprobs.argmax(-1) if likeliest is None else likeliest
            tallies[dtype].add(logprobs, window, likeliest)
    exact = tallies["float32"].perplexity
    for dtype, tally in tallies.items():
        found = {
            "tokens": tally.tokens,
            "perplexity": round(tally.perplexity, 4),
            "of float32's": round(tally.perplexity / exact, 5),
            "agreement": round(tally.agreed / tally.tokens, 4),
        }
        print(f"{dtype:10}", json.dumps(found), readers[dtype].engine.runtime_revision)


if __name__ == "__main__":
    main()
