"""A scheduler in miniature: it owns slots and pages, and drives an engine through real step messages."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kit import artifacts
from services.worker.engine import EngineConfig
from services.worker.engine.native import build
from services.worker.engine.threads import prepare_threads
from tokenloom.api.worker.v1 import worker_pb2

prepare_threads()
import torch  # noqa: E402 - it reads its environment now
from safetensors.torch import load_file, save_file  # noqa: E402

from services.worker.engine.batch import Batch  # noqa: E402
from services.worker.engine.sampling import Draws  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.worker.engine.noise import Keys
    from services.worker.engine.runner import Runner

DATA = Path(__file__).parents[2] / "data" / "engine"
TINY = DATA / "llama3-rope"
TINY_CONFIG = EngineConfig(dtype="float32", page_count=256, slot_count=64, max_step_tokens=4096, threads=1)
_WORDS = np.random.default_rng(3)


def draws_of(keys: Keys, **fields: float) -> Draws:
    """What as many rows as there are keys ask for: all the same."""
    rows = len(keys)
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_logprobs": -1} | fields
    return Draws(
        temperature=np.full(rows, values["temperature"], float),
        top_k=np.full(rows, values["top_k"], np.int64),
        top_p=np.full(rows, values["top_p"], float),
        min_p=np.full(rows, values["min_p"], float),
        top_logprobs=np.full(rows, values["top_logprobs"], np.int64),
        keys=keys,
    )


def needs_native() -> None:
    """Skip a test of the native kernels where they cannot be had, with the reason."""
    try:
        build.library()
    except build.NativeError as reason:
        pytest.skip(f"no native kernels: {reason}")


def seal(source: Path, directory: Path) -> Path:
    """Copy a model's files into an artifact directory of its own, with a manifest."""
    directory.mkdir(parents=True)
    for name in (artifacts.CONFIG, artifacts.WEIGHTS, artifacts.TOKENIZER):
        shutil.copyfile(source / name, directory / name)
    return reseal(directory)


def reseal(directory: Path) -> Path:
    artifacts.write_manifest(
        directory,
        artifacts.ManifestMeta(
            name="tiny",
            family="llama",
            context_length=512,
            source="test",
            licence="none",
            eos_token_ids=(2,),
            bos_token_id=1,
        ),
    )
    return directory


def altered(name: str, parent: Path, config: dict[str, Any], borrowed: dict[str, str] | None = None) -> Path:
    """Seal a tiny model with other settings; tensors with a prefix in `borrowed` come from another model."""
    artifact = seal(DATA / name, parent / "altered")
    document = json.loads((artifact / artifacts.CONFIG).read_text()) | config
    (artifact / artifacts.CONFIG).write_text(json.dumps(document))
    tensors = load_file(artifact / artifacts.WEIGHTS)
    for prefix, lender in (borrowed or {}).items():
        lent = load_file(DATA / lender / artifacts.WEIGHTS)
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(prefix)}
        tensors |= {key: tensor for key, tensor in lent.items() if key.startswith(prefix)}
    save_file(tensors, artifact / artifacts.WEIGHTS)
    return reseal(artifact)


def cases_of(name: str, reference: str = "expected") -> list[dict[str, Any]]:
    return json.loads((DATA / name / f"{reference}.json").read_text())["cases"]  # type: ignore[no-any-return]


@dataclass(eq=False)
class Row:
    """A resident sequence, and what came of it."""

    slot: int
    tokens: list[int]
    prompt_len: int
    wanted: int
    computed: int
    pages: list[int]
    borrowed: int = 0
    logprobs: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    error: str = ""

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def done(self) -> bool:
        return bool(self.error) or len(self.output) >= self.wanted


class Driver:
    """Hands out slots and pages in random order; with `poison`, free pages are full of NaN."""

    def __init__(self, engine: Runner, *, seed: int = 0, poison: bool = True) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.free_pages = self.random.sample(range(engine.page_count), engine.page_count)
        self.free_slots = self.random.sample(range(engine.slot_count), engine.slot_count)
        self.rows: list[Row] = []
        self.plan = worker_pb2.StepPlan()
        self._poison = poison
        self._ids = 0
        engine.reset()
        self._spoil(self.free_pages)

    def add(
        self,
        tokens: Sequence[int],
        wanted: int,
        *,
        prompt_len: int | None = None,
        prefix: Sequence[int] = (),
        choice: int = 0,
        **sampling: float | None,
    ) -> Row:
        """Make a sequence resident in the next step; `prefix` are pages that hold its first tokens' KV."""
        self._ids += 1
        size = self.engine.page_size
        row = Row(
            slot=self.free_slots.pop(),
            tokens=list(tokens),
            prompt_len=len(tokens) if prompt_len is None else prompt_len,
            wanted=wanted,
            computed=len(prefix) * size,
            pages=list(prefix),
            borrowed=len(prefix),
        )
        sampling = {"top_p": 1.0, "top_logprobs": 5} | sampling
        self.plan.add.add(
            slot=row.slot,
            sequence_id=self._ids,
            token_ids=row.tokens,
            prompt_len=row.prompt_len,
            computed_len=row.computed,
            pages=row.pages,
            choice=choice,
            sampling=worker_pb2.Sampling(**{k: v for k, v in sampling.items() if v is not None}),
        )
        self.rows.append(row)
        return row

    def drop(self, row: Row) -> None:
        """Release a sequence in the next step."""
        self.plan.drop.append(row.slot)
        self.rows.remove(row)
        self.free_slots.insert(0, row.slot)
        freed = row.pages[row.borrowed :]
        self._spoil(freed)
        self.free_pages = freed + self.free_pages

    def schedule(self, row: Row, chunk: int) -> None:
        """Let a row compute up to `chunk` tokens, with the pages that takes."""
        count = min(chunk, len(row.tokens) - row.computed)
        self.plan.slot.append(row.slot)
        self.plan.token_count.append(count)
        row.computed += count
        while len(row.pages) * self.engine.page_size < row.computed:
            row.pages.append(self.free_pages.pop())
            self.plan.page_slot.append(row.slot)
            self.plan.page.append(row.pages[-1])

    def step(self, chunk: int = 1 << 30) -> worker_pb2.StepResult:
        """Run one step over every row that is not done."""
        for row in self.rows:
            if not row.done:
                self.schedule(row, chunk)
        result = self.engine.execute(self.plan)
        self.plan = worker_pb2.StepPlan()
        self._take(result)
        return result

    def run(self, chunk: int = 1 << 30) -> list[list[int]]:
        """Step until every row is done; the outputs in the order in which rows were added."""
        while not all(row.done for row in self.rows):
            self.step(chunk)
        return [row.output for row in self.rows]

    def _spoil(self, pages: list[int]) -> None:
        if self._poison:
            self.engine.pool.fill(np.array(pages, np.int64), 0, torch.nan)

    def _take(self, result: worker_pb2.StepResult) -> None:
        by_slot = {row.slot: row for row in self.rows}
        columns, offset = result.logprobs, 0
        reported = {}
        for position, logprob, count in zip(columns.row, columns.logprob, columns.top_count, strict=True):
            ids = columns.top_token_id[offset : offset + count]
            reported[position] = (logprob, dict(zip(ids, columns.top_logprob[offset:], strict=False)))
            offset += count
        for position, (slot, token) in enumerate(zip(result.slot, result.token_id, strict=True)):
            by_slot[slot].tokens.append(token)
            if position in reported:
                by_slot[slot].logprobs.append(reported[position])
        for error in result.row_error:
            if error.slot in by_slot:
                by_slot[error.slot].error = error.reason


def prompt_of(length: int) -> list[int]:
    return _WORDS.integers(3, 384, length).tolist()


def alone(engine: Runner, prompt: list[int], wanted: int = 12, **sampling: float) -> list[int]:
    driver = Driver(engine)
    driver.add(prompt, wanted, **sampling)
    return driver.run()[0]


def all_logprobs(engine: Runner, ids: list[int]) -> torch.Tensor:
    """Log-probabilities after every token of a prompt, through the forward's seam."""
    count = len(ids)
    batch = Batch(
        token_ids=np.array(ids),
        positions=np.arange(count),
        cells=np.arange(count),
        counts=np.array([count]),
        contexts=np.array([count]),
        page_tables=np.arange(-(-count // engine.page_size))[None],
        sampled=np.arange(count),
    )
    with torch.inference_mode():
        engine.pool.data.zero_()
        return engine.forward(batch).log_softmax(-1)


def check_against(engine: Runner, cases: list[dict[str, Any]]) -> None:
    """Greedy tokens and log-probabilities of every prompt token are those of a reference."""
    for case in cases:
        ids = case["prompt_token_ids"]
        assert alone(engine, ids, 24) == case["greedy_token_ids"]
        logprobs = all_logprobs(engine, ids)
        assert logprobs[-1, :16].tolist() == pytest.approx(case["last_logprobs_first16"], abs=1e-3)
        of_prompt = [logprobs[index, token].item() for index, token in enumerate(ids[1:])]
        assert of_prompt == pytest.approx(case["prompt_logprobs"], abs=1e-3)
