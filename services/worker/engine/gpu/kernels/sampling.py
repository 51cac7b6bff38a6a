"""Drawing tokens: one pass over the vocabulary, then one over each row's likeliest tokens.

Noise is that of services.worker.engine.noise, in float64 as there: a token's own, whatever else is kept.
"""

import triton
import triton.language as tl

GREEDY: tl.constexpr = tl.constexpr(0)
WHOLE: tl.constexpr = tl.constexpr(1)
LIMITED: tl.constexpr = tl.constexpr(2)

_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _gumbel(key, token_ids):
    state = key.to(tl.uint64) + (token_ids.to(tl.uint64) + 1) * _GOLDEN
    state = (state ^ (state >> 30)) * _FIRST
    state = (state ^ (state >> 27)) * _SECOND
    state = state ^ (state >> 31)
    uniform = ((state >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    return -tl.log(-tl.log(uniform))


@triton.jit
def _greatest(scores, ids_ptr, count):
    """The id beside the greatest score, one of the first `count` even among NaN."""
    return tl.load(ids_ptr + tl.minimum(tl.argmax(scores, 0), count - 1)).to(tl.int64)


@triton.jit
def _asked(row, temperatures_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, keys_ptr):
    temperature, key = tl.load(temperatures_ptr + row), tl.load(keys_ptr + row)
    return temperature, tl.load(top_ks_ptr + row), tl.load(top_ps_ptr + row), tl.load(min_ps_ptr + row), key


@triton.jit
def _kept(scaled, rank, total, top_k, top_p, min_p, WIDTH: tl.constexpr):
    """Which of a row's WIDTH likeliest tokens its limits keep, and whether no other token could be kept."""
    counted = (top_k > 0) & (top_k <= WIDTH)
    kept = (rank < WIDTH) & ((rank < top_k) | (counted == 0))
    mass = tl.where(kept, tl.exp(scaled), 0.0)
    share = mass / tl.where(counted, tl.sum(mass, 0), total)
    before = tl.cumsum(share, 0) - share
    kept = kept & (before < top_p) & (tl.exp(scaled) >= min_p)
    kept = kept | (rank == 0)
    least = tl.sum((kept & (rank == WIDTH - 1)).to(tl.int64), 0)
    return kept, (counted | ((top_k == 0) & (least == 0))).to(tl.int64)


@triton.jit
def _draw(candidates_ptr, ids_ptr, mosts, masses, asked, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """One of a row's WIDTH likeliest tokens, and whether it could not have been any other."""
    temperature, top_k, top_p, min_p, key = asked
    most = tl.max(mosts, 0)
    total = tl.sum(masses * tl.exp((mosts.to(tl.float64) - most) / temperature), 0)
    rank = tl.arange(0, BLOCK_W)
    value = tl.load(candidates_ptr + rank, mask=rank < WIDTH, other=-1e30).to(tl.float64)
    scaled = (value - most) / temperature
    kept, certain = _kept(scaled, rank, total, top_k, top_p, min_p, WIDTH)
    ids = tl.load(ids_ptr + rank, mask=rank < WIDTH, other=0)
    score = tl.where(kept, scaled + _gumbel(key, ids), float("-inf"))
    return _greatest(score, ids_ptr, WIDTH), certain


# Slices of what was sent, or comes back, in one piece.
_ANYWHERE = ["kinds_ptr", "temperatures_ptr", "top_ks_ptr", "top_ps_ptr", "min_ps_ptr", "keys_ptr"]
_RESULTS = ["token_ids_ptr", "settled_ptr", "finite_ptr"]
_PARTS = ["most_ptr", "likeliest_ptr", "mass_ptr", "score_ptr", "drawn_ptr"]


@triton.jit(do_not_specialize_on_alignment=["kinds_ptr", "temperatures_ptr", "keys_ptr", *_PARTS])
def scan(
    logits_ptr,
    kinds_ptr,
    temperatures_ptr,
    keys_ptr,
    most_ptr,
    likeliest_ptr,
    mass_ptr,
    score_ptr,
    drawn_ptr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row's BLOCK of the vocabulary, into five arrays [rows, blocks].

    most: its greatest logit, a NaN if any is none or infinite; likeliest: whose that is; mass: the sum of
    exp((logit - most) / temperature); score, drawn: greatest noisy logit and whose, for a row that keeps all.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    token_ids = block * BLOCK + tl.arange(0, BLOCK)
    mask = token_ids < VOCABULARY
    logits = tl.load(logits_ptr + row.to(tl.int64) * VOCABULARY + token_ids, mask=mask, other=-1e30)
    kind = tl.load(kinds_ptr + row)
    at = row * tl.num_programs(1) + block
    # A difference from itself is 0, unless there is none.
    odd = tl.sum(logits - logits, 0)
    most = tl.max(logits, 0)
    tl.store(most_ptr + at, most + odd)
    tl.store(likeliest_ptr + at, tl.argmax(logits, 0) + block * BLOCK)
    if kind != GREEDY:
        temperature = tl.load(temperatures_ptr + row)
        scaled = (logits.to(tl.float64) - most) / temperature
        tl.store(mass_ptr + at, tl.sum(tl.where(mask, tl.exp(scaled.to(tl.float32)), 0.0), 0))
        if kind == WHOLE:
            score = logits.to(tl.float64) / temperature + _gumbel(tl.load(keys_ptr + row), token_ids)
            score = tl.where(mask, score, float("-inf"))
            tl.store(score_ptr + at, tl.max(score, 0))
            tl.store(drawn_ptr + at, tl.argmax(score, 0) + block * BLOCK)


@triton.jit(do_not_specialize_on_alignment=[*_ANYWHERE, *_PARTS, *_RESULTS])
def choose(
    kinds_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    keys_ptr,
    most_ptr,
    likeliest_ptr,
    mass_ptr,
    score_ptr,
    drawn_ptr,
    candidates_ptr,
    candidate_ids_ptr,
    token_ids_ptr,
    settled_ptr,
    finite_ptr,
    blocks,
    BLOCKS: tl.constexpr,
    VOCABULARY: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One row: join its blocks; where it limits what is kept, draw among its WIDTH likeliest tokens.

    A row is settled when nothing outside these could have been kept.
    """
    row, part = tl.program_id(0), tl.arange(0, BLOCKS)
    at, mask = row * blocks + part, part < blocks
    mosts = tl.load(most_ptr + at, mask=mask, other=-1e30)
    kind = tl.load(kinds_ptr + row)
    tl.store(finite_ptr + row, (tl.sum(mosts - mosts, 0) == 0.0).to(tl.int64))
    token_id = _greatest(mosts, likeliest_ptr + row * blocks, blocks)
    settled = tl.full([], 1, tl.int64)
    if kind == WHOLE:
        scores = tl.load(score_ptr + at, mask=mask, other=float("-inf"))
        token_id = _greatest(scores, drawn_ptr + row * blocks, blocks)
    elif kind == LIMITED:
        asked = _asked(row, temperatures_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, keys_ptr)
        masses = tl.load(mass_ptr + at, mask=mask, other=0.0).to(tl.float64)
        first = row * WIDTH
        token_id, certain = _draw(
            candidates_ptr + first, candidate_ids_ptr + first, mosts, masses, asked, WIDTH, BLOCK_W
        )
        if WIDTH < VOCABULARY:
            settled = certain
    # Among NaN the greatest may be anywhere.
    tl.store(token_ids_ptr + row, tl.minimum(token_id, VOCABULARY - 1))
    tl.store(settled_ptr + row, settled)
