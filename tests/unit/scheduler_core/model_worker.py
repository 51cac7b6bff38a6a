"""A worker that executes plans literally over symbolic KV pages and checks the step protocol."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.core.messages import Capacity, Logprobs, NewSequence, Request, StepPlan, StepResult

ROOT = 17


def extend(prefix: int, token: int) -> int:
    """The KV of a position depends on every token up to it: fold them into one number."""
    return hash((prefix, token))


def next_token(prefix: int, seed: int, choice: int, vocab_size: int) -> int:
    """Sampling as a pure function of what came before, seed and choice."""
    return hash((prefix, seed, choice)) % vocab_size


def oracle(request: Request, choice: int, capacity: Capacity) -> list[int]:
    """What the choice produces when nothing stands in its way."""
    prefix = ROOT
    for token in request.prompt:
        prefix = extend(prefix, token)
    produced: list[int] = []
    most = min(request.max_output_tokens, capacity.context_length - len(request.prompt))
    while len(produced) < most:
        token = next_token(prefix, request.sampling.seed, choice, capacity.vocab_size)
        produced.append(token)
        if token in request.stop_token_ids:
            break
        prefix = extend(prefix, token)
    return produced


@dataclass(slots=True)
class Resident:
    new: NewSequence
    tokens: list[int]
    prefixes: list[int]  # of each known token
    pages: list[int]
    computed: int
    failed: bool = False

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.prefixes.append(extend(self.prefixes[-1] if self.prefixes else ROOT, token))


class ModelWorker:
    """Page contents are the folded prefixes that were written there; None is fresh memory."""

    def __init__(self, capacity: Capacity, epoch: int) -> None:
        self.capacity = capacity
        self.epoch = epoch
        self.step = 0
        self.kv: list[list[int | None]] = [[None] * capacity.page_size for _ in range(capacity.page_count)]
        self.residents: dict[int, Resident] = {}
        self.failing: set[int] = set()  # sequence ids whose next row is an error
        self.written: list[tuple[int, int]] = []  # (page, offset) of the last step

    def execute(self, plan: StepPlan) -> StepResult:
        assert (plan.epoch, plan.step) == (self.epoch, self.step + 1)
        self.step = plan.step
        self.written = []
        for slot in plan.drop:
            del self.residents[slot]
        for new in plan.add:
            self._add(new)
        for slot, page in zip(plan.page_slot, plan.page, strict=True):
            assert page not in self.residents[slot].pages
            self.residents[slot].pages.append(page)
        assert sum(plan.token_count) <= self.capacity.max_step_tokens
        assert len(set(plan.slot)) == len(plan.slot)
        result = StepResult(plan.epoch, plan.step)
        for slot, count in zip(plan.slot, plan.token_count, strict=True):
            self._row(slot, count, result)
        return result

    def waiting_decodes(self) -> set[int]:
        """Slots that could decode one token."""
        return {
            slot
            for slot, one in self.residents.items()
            if one.computed == len(one.tokens) - 1 and len(one.tokens) > one.new.prompt_len
        }

    def _add(self, new: NewSequence) -> None:
        assert 0 <= new.slot < self.capacity.slot_count
        assert new.slot not in self.residents
        assert 0 <= new.computed_len < len(new.token_ids)
        assert new.prompt_len <= len(new.token_ids)
        assert len(set(new.pages)) == len(new.pages)
        resident = Resident(new, [], [], list(new.pages), new.computed_len)
        for token in new.token_ids:
            resident.append(token)
        self.residents[new.slot] = resident

    def _row(self, slot: int, count: int, result: StepResult) -> None:
        one = self.residents[slot]
        if one.failed:  # planned before the error was known
            result.row_error[slot] = "NAN_LOGITS"
            return
        assert 1 <= count <= len(one.tokens) - one.computed
        for position in range(one.computed, one.computed + count):
            self._write(slot, one, position)
        one.computed += count
        self._check_context(one)
        if one.new.sequence_id in self.failing:
            one.failed = True
            result.row_error[slot] = "NAN_LOGITS"
        elif one.computed == len(one.tokens):
            sampling = one.new.sampling
            token = next_token(one.prefixes[-1], sampling.seed, one.new.choice, self.capacity.vocab_size)
            if sampling.top_logprobs is not None:
                result.logprobs[len(result.slot)] = Logprobs(-float(token), ())
            result.slot.append(slot)
            result.token_id.append(token)
            one.append(token)

    def _write(self, slot: int, one: Resident, position: int) -> None:
        page = one.pages[position // self.capacity.page_size]
        sharers = [other for other, held in self.residents.items() if page in held.pages]
        assert sharers == [slot], f"page {page} is written while slots {sharers} hold it"
        self.kv[page][position % self.capacity.page_size] = one.prefixes[position]
        self.written.append((page, position % self.capacity.page_size))

    def _check_context(self, one: Resident) -> None:
        size = self.capacity.page_size
        context = [self.kv[one.pages[at // size]][at % size] for at in range(one.computed)]
        assert context == one.prefixes[: one.computed], "attention would read somebody else's KV"
