"""Drawing one token per row from its logits, exactly, while sorting as few of them as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from services.worker.engine.noise import gumbel, second_keys, uniform

if TYPE_CHECKING:
    from services.worker.engine.batch import Ints
    from services.worker.engine.noise import Keys

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Candidates that are looked at before the whole vocabulary is.
_WIDTHS = (64, 1024)
# Below it the likeliest token's share is 1 to within float64. The native sampler has the same number.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row draws: arrays of [rows]. `top_logprobs` is -1 where none were asked for."""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    top_logprobs: Ints
    keys: Keys

    def at(self, rows: Ints | Bools) -> Draws:
        """Pick rows."""
        fields = (self.temperature, self.top_k, self.top_p, self.min_p, self.top_logprobs, self.keys)
        return Draws(*(field[rows] for field in fields))  # type: ignore[arg-type]

    @property
    def whole(self) -> Bools:
        """Rows that keep every token."""
        whole: Bools = (self.top_k == 0) & (self.top_p >= 1) & (self.min_p <= 0)
        return whole


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn. `logprob`, `top_ids` and `top_logprobs` are valid for the rows that asked.

    finite, token_id, logprob: [rows]; top_ids, top_logprobs: [rows, most alternatives asked for].
    """

    finite: Bools
    token_id: Ints
    logprob: Floats
    top_ids: Ints
    top_logprobs: Floats


class Sampler(Protocol):
    """Draws a token from each row of [rows, vocabulary]; a row with a NaN or an infinity is not finite."""

    def __call__(self, logits: torch.Tensor, draws: Draws) -> Drawn:
        """Return what each row drew."""
        ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest tokens of each row in order, logits relative to the first: [rows, candidates].

    `total` is the sum of exp(logit / temperature) over the row's vocabulary: [rows]; it holds nothing of use
    where top-k keeps no more than the candidates.
    """

    logits: Floats
    ids: Ints
    total: Floats
    complete: bool


def draw(logits: torch.Tensor, draws: Draws) -> Drawn:
    """Draw a token from each row of [rows, vocabulary]; a row with a NaN or an infinity is not finite."""
    logits = logits.float()
    finite = torch.isfinite(logits.sum(-1)).cpu().numpy()
    token_id = logits.argmax(-1).cpu().numpy()
    random = finite & (draws.temperature >= GREEDY_BELOW)
    if random.any():
        rows = np.flatnonzero(random)
        token_id[rows] = _draw_random(_pick(logits, rows), draws.at(rows))
    logprob, top_ids, top_logprobs = logprobs_of(logits, token_id, draws.top_logprobs)
    return Drawn(finite, token_id, logprob, top_ids, top_logprobs)


def _pick(logits: torch.Tensor, rows: Ints) -> torch.Tensor:
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]


def logprobs_of(logits: torch.Tensor, token_id: Ints, asked: Ints) -> tuple[Floats, Ints, Floats]:
    """Log-probabilities of the raw logits, before temperature, for the rows that asked."""
    most = max(int(asked.max(initial=-1)), 0)
    logprob = np.zeros(len(token_id))
    top_ids = np.zeros((len(token_id), most), np.int64)
    top_logprobs = np.zeros((len(token_id), most))
    rows = np.flatnonzero(asked >= 0)
    if len(rows):
        picked = _pick(logits, rows)
        total = picked.logsumexp(-1, keepdim=True)
        chosen = torch.from_numpy(token_id[rows]).to(logits.device)[:, None]
        logprob[rows] = (picked.gather(1, chosen) - total)[:, 0].cpu().numpy()
        values, ids = picked.topk(min(most, logits.shape[1]), dim=-1)
        top_ids[rows, : ids.shape[1]] = ids.cpu().numpy()
        top_logprobs[rows, : ids.shape[1]] = (values - total).cpu().numpy()
    return logprob, top_ids, top_logprobs


def _draw_random(logits: torch.Tensor, draws: Draws) -> Ints:
    """Look at the likeliest few tokens; for the rows that these do not settle, at more, at last at all."""
    vocabulary = logits.shape[1]
    token_id = np.zeros(len(logits), np.int64)
    rows = np.arange(len(logits))
    for width in (*(width for width in _WIDTHS if width < vocabulary), vocabulary):
        candidates = _candidates(logits, draws, width)
        token_id[rows], settled = _choose(candidates, draws)
        tail = np.flatnonzero(~settled & draws.whole)
        if len(tail):
            token_id[rows[tail]] = _draw_tail(_pick(logits, tail), draws.at(tail), candidates.ids[tail])
        unsettled = np.flatnonzero(~settled & ~draws.whole)
        if not len(unsettled):
            break
        logits, draws, rows = _pick(logits, unsettled), draws.at(unsettled), rows[unsettled]
    return token_id


def _candidates(logits: torch.Tensor, draws: Draws, width: int) -> Candidates:
    values, ids = logits.topk(width, dim=-1)
    best = values[:, :1]
    total = torch.ones(len(logits))
    if not _limited(draws, width).all():
        temperature = torch.from_numpy(draws.temperature).to(logits)[:, None]
        total = (logits - best).div_(temperature).exp_().sum(-1)
    return Candidates(
        logits=(values - best).double().cpu().numpy(),
        ids=ids.cpu().numpy(),
        total=total.double().cpu().numpy(),
        complete=width == logits.shape[1],
    )


def _limited(draws: Draws, width: int) -> Bools:
    limited: Bools = (draws.top_k > 0) & (draws.top_k <= width)
    return limited


def _choose(head: Candidates, draws: Draws) -> tuple[Ints, Bools]:
    """Keep by top-k, then by top-p within what that kept, then by min-p, and draw among the kept.

    A row is settled when nothing outside the candidates could have been kept, or drawn: where every token is
    kept, those outside stand as one more candidate with their joint mass.
    """
    scaled = head.logits / draws.temperature[:, None]
    width = scaled.shape[1]
    limited = _limited(draws, width)
    kept = ~limited[:, None] | (np.arange(width) < draws.top_k[:, None])
    mass = np.exp(scaled) * kept
    total = np.where(limited, mass.sum(-1), head.total)
    share = mass / total[:, None]
    before = np.cumsum(share, -1) - share
    kept &= (before < draws.top_p[:, None]) & (np.exp(scaled) >= draws.min_p[:, None])
    kept[:, 0] = True
    score = np.where(kept, scaled + gumbel(draws.keys, head.ids), -np.inf)
    token_id = np.take_along_axis(head.ids, score.argmax(-1)[:, None], -1)[:, 0]
    settled = head.complete | limited | ((draws.top_k == 0) & ~kept[:, -1])
    outside = np.log(np.maximum(total - mass.sum(-1), np.finfo(np.float64).tiny))
    outside += gumbel(draws.keys, np.array([-1]))[:, 0]
    return token_id, settled | (draws.whole & (outside <= score.max(-1)))


def _draw_tail(logits: torch.Tensor, draws: Draws, taken: Ints) -> Ints:
    """Draw among the tokens that are not in `taken`, by one uniform number per row."""
    scaled = logits.double() / torch.from_numpy(draws.temperature).to(logits.device)[:, None]
    scaled.scatter_(1, torch.from_numpy(taken).to(logits.device), -torch.inf)
    cumulated = (scaled - scaled.amax(-1, keepdim=True)).exp_().cumsum(-1)
    uniforms = torch.from_numpy(uniform(second_keys(draws.keys), np.array([0]))).to(logits.device)
    token_id: Ints = torch.searchsorted(cumulated, uniforms * cumulated[:, -1:])[:, 0].cpu().numpy()
    return token_id
