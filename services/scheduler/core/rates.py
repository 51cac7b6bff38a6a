"""How fast the workers are, as measured from their steps."""

from __future__ import annotations

BUCKETS = 32
FALL, RISE = 0.5, 0.2  # weight of a new measurement below and above the present one
MOST_RISE = 2.0  # an outlier counts as at most this many times the present value
MOST_STRETCH = 2.2  # of a decode step, by the prompts beside it, where that is longer than the target
LEAST_PROMPT_TOKENS = 16  # that a step computes beside decodes, however slow the worker: prompts must get on


class StepCurve:
    """Seconds of a step by its size: measured by powers of two, and a low guess where nobody looked.

    It follows a faster step quickly and a slower one slowly, so that a stall does not refuse work.
    """

    __slots__ = ("_base_s", "_seconds", "_sizes", "_slope_s")

    def __init__(self, base_s: float, slope_s: float) -> None:
        self._base_s = base_s
        self._slope_s = slope_s
        self._sizes = [0.0] * BUCKETS
        self._seconds = [0.0] * BUCKETS

    def observe(self, size: int, seconds: float) -> None:
        """Note one step of `size` tokens or rows."""
        bucket = min(size.bit_length(), BUCKETS - 1)
        if not self._sizes[bucket]:
            self._sizes[bucket], self._seconds[bucket] = float(size), seconds
        present = self._seconds[bucket]
        seconds = min(seconds, MOST_RISE * present)
        weight = FALL if seconds < present else RISE
        self._seconds[bucket] += weight * (seconds - present)
        self._sizes[bucket] += weight * (size - self._sizes[bucket])
        self._lower_beyond(bucket)

    def _lower_beyond(self, bucket: int) -> None:
        """Let no larger size take longer for each of its parts; one that looks slow is not tried again."""
        each_s = self._seconds[bucket] / self._sizes[bucket]
        for larger in range(bucket + 1, BUCKETS):
            self._seconds[larger] = min(self._seconds[larger], each_s * self._sizes[larger])

    def predict(self, size: float) -> float:
        """Return the seconds a step of this size takes."""
        if size <= 0:
            return 0.0
        below = above = None
        for measured, seconds in zip(self._sizes, self._seconds, strict=True):
            if measured and measured <= size:
                below = (measured, seconds)
            elif measured:
                above = (measured, seconds)
                break
        if below is None:
            prior = self._base_s + self._slope_s * size
            return prior if above is None else above[1] * size / above[0]
        if above is None:
            return below[1] + (size - below[0]) * self._slope_s
        share = (size - below[0]) / (above[0] - below[0])
        return below[1] + share * (above[1] - below[1])


class Rates:
    """Measured step times of a lane's workers; priors are those of a fast machine."""

    __slots__ = ("decode", "last_step_at", "output_share", "prefill")

    def __init__(self) -> None:
        self.prefill = StepCurve(base_s=0.002, slope_s=2e-5)
        self.decode = StepCurve(base_s=0.005, slope_s=2e-5)
        self.output_share = 1.0  # output tokens produced, of those allowed
        self.last_step_at: float | None = None

    def observe_step(self, prefill_tokens: int, decode_rows: int, seconds: float, now: float) -> None:
        """Note a committed step; in a mixed one what the decodes added is taken off first."""
        self.last_step_at = now
        if not prefill_tokens:
            self.decode.observe(decode_rows, seconds)
        else:
            self.prefill.observe(prefill_tokens, max(0.0, seconds - self.beside(decode_rows)))

    def observe_output(self, produced: int, allowed: int) -> None:
        """Note how much of its allowance a choice used when it ended by itself."""
        self.output_share += 0.05 * (produced / allowed - self.output_share)

    def beside(self, decode_rows: float) -> float:
        """Return the seconds that decodes add to a step that runs anyway."""
        return max(0.0, self.decode.predict(decode_rows) - self.decode.predict(1)) if decode_rows > 1 else 0.0

    def prompt_budget(self, decode_rows: int, most: int, target_s: float) -> int:
        """Return how many prompt tokens, up to `most`, a step computes beside decodes to take `target_s`."""
        decode_s = self.decode.predict(decode_rows)
        room_s = max(target_s, MOST_STRETCH * decode_s) - self.beside(decode_rows)
        fits, exceeds = min(LEAST_PROMPT_TOKENS, most), most + 1
        if self.prefill.predict(most) <= room_s:
            return most
        while exceeds - fits > 1:
            tokens = (fits + exceeds) // 2
            if self.prefill.predict(tokens) <= room_s:
                fits = tokens
            else:
                exceeds = tokens
        return fits

    def prefill_seconds(self, tokens: float, chunk: int) -> float:
        """Return the seconds that `tokens` take in steps of `chunk`."""
        whole, rest = divmod(tokens, chunk)
        return whole * self.prefill.predict(chunk) + self.prefill.predict(rest)
