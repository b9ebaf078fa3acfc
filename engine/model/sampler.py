"""Choosing the next tokens, for all rows of a step at once, on the device.

The one random number of a row is a function of (seed, position), so a run can be repeated in any batch, and a drafted
token can be compared with the token that plain decoding would have chosen: verification is an equality test for greedy
and for random sampling alike (`verify`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xgrammar

from engine.messages import Sampling, TokenLogprobs
from engine.model.best_values import best_values

_MASK64 = (1 << 64) - 1
_CANDIDATES = (256, 4096)
"""So many best tokens are looked at first, then more; nearly always top-k, top-p and min-p are decided among them."""


class TokenCounts:
    """How often each token occurs in a context, for penalties. Kept only by generations that have one."""

    def __init__(self, vocab_size: int, prompt: Sequence[int]) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool)
        self.generated = torch.zeros(vocab_size)
        if prompt:
            self.seen[torch.tensor(prompt)] = True

    def add(self, token: int, times: int = 1) -> None:
        """Counts a generated token (`times` = -1 takes it back, but leaves it seen)."""
        self.seen[token] = True
        self.generated[token] += times

    @staticmethod
    def needed(sampling: Sampling) -> bool:
        """Whether any penalty is on."""
        penalties = (sampling.presence_penalty, sampling.frequency_penalty)
        return sampling.repetition_penalty != 1.0 or penalties != (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How one row of logits becomes the token at `position` of its context.

    `drafted` are the guessed tokens between the last one in `counts` and this row.
    """

    sampling: Sampling
    position: int
    top_logprobs: int | None = None
    counts: TokenCounts | None = None
    drafted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """`failed`: the logits were not numbers; the token means nothing then."""

    token: int
    logprobs: TokenLogprobs | None
    failed: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen, still on the device: `tokens` int64 `[rows]`."""

    tokens: torch.Tensor
    best: torch.Tensor
    logprobs: _Logprobs | None = None

    def read(self) -> list[SampledToken]:
        """The tokens on the host. Waits for the device."""
        logprobs = self.logprobs.read() if self.logprobs is not None else {}
        finite = self.best.isfinite().tolist()
        tokens = enumerate(self.tokens.tolist())
        return [SampledToken(token, logprobs.get(i), not finite[i]) for i, token in tokens]


@dataclass(frozen=True, slots=True)
class _Logprobs:
    rows: list[int]
    counts: list[int]
    chosen: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor

    def read(self) -> dict[int, TokenLogprobs]:
        chosen, values, ids = self.chosen.tolist(), self.values.tolist(), self.ids.tolist()
        found = {}
        for i, (row, count) in enumerate(zip(self.rows, self.counts, strict=True)):
            found[row] = TokenLogprobs(chosen[i], list(zip(ids[i][:count], values[i][:count], strict=True)))
        return found


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[SampleRow], bitmask: torch.Tensor | None = None) -> Sampled:
    """One token per row, without waiting for the device.

    `logits` is float32 `[rows, vocab]` and is changed. `bitmask` (int32 `[rows, ceil(vocab / 32)]`, on the CPU) has
    the tokens that grammars allow.
    """
    wanted = [i for i, row in enumerate(rows) if row.top_logprobs is not None]
    raw = logits[torch.tensor(wanted, device=logits.device)].log_softmax(dim=-1) if wanted else None
    for i, row in enumerate(rows):
        if row.counts is not None or row.sampling.logit_bias:
            _adjust(logits[i], row)
    if bitmask is not None:
        xgrammar.apply_token_bitmask_inplace(logits, bitmask.to(logits.device, non_blocking=True))
    best, chosen = _best(logits)
    random_rows = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if random_rows:
        index = torch.tensor(random_rows, device=logits.device)
        chosen[index] = _sample_random(logits[index], chosen[index], [rows[i] for i in random_rows])
    if raw is None:
        return Sampled(chosen, best)
    return Sampled(chosen, best, _logprobs(raw, chosen, wanted, [rows[i].top_logprobs or 0 for i in wanted]))


def verify(sampled: Sequence[int], draft: Sequence[int]) -> int:
    """How many drafted tokens are what was sampled in their place; `sampled` has one token more than `draft`."""
    pairs = enumerate(zip(sampled, draft, strict=False))
    return next((i for i, (token, guess) in pairs if token != guess), len(draft))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position): two rounds of the SplitMix64 finaliser (Steele et al., 2014)."""
    return _mix(_mix(seed & _MASK64) ^ (position & _MASK64)) / 2**64 * (1 - 2**-24)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest value of each row (NaN if it has one) and where it first is."""
    if logits.device.type != "cpu":
        best, chosen = logits.max(dim=-1)
        return best, chosen
    # numpy's search is vectorised and seven times as fast as torch's.
    chosen = torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.gather(1, chosen.unsqueeze(1)).squeeze(1), chosen


def _adjust(logits: torch.Tensor, row: SampleRow) -> None:
    """Penalties and bias on one row, in place."""
    sampling, counts = row.sampling, row.counts
    if counts is not None:
        seen, generated = counts.seen, counts.generated
        if row.drafted:
            seen, generated = seen.clone(), generated.clone()
            drafted = torch.tensor(row.drafted)
            seen[drafted] = True
            generated.index_add_(0, drafted, torch.ones(len(row.drafted)))
        seen, generated = seen.to(logits.device), generated.to(logits.device)
        factor = sampling.repetition_penalty
        if factor != 1.0:
            logits.copy_(torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits))
        logits -= sampling.presence_penalty * (generated > 0) + sampling.frequency_penalty * generated
    if sampling.logit_bias:
        tokens = torch.tensor(list(sampling.logit_bias), device=logits.device)
        logits[tokens] += torch.tensor(list(sampling.logit_bias.values()), device=logits.device)


def _logprobs(raw: torch.Tensor, chosen: torch.Tensor, rows: list[int], counts: list[int]) -> _Logprobs:
    index = torch.tensor(rows, device=raw.device)
    values, ids = best_values(raw, max(counts)) if any(counts) else (raw[:, :0], index.unsqueeze(1)[:, :0])
    return _Logprobs(rows, counts, raw.gather(1, chosen[index].unsqueeze(1)).squeeze(1), values, ids)


def _sample_random(logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Temperature, then top-k, top-p and min-p, then the inverse of the distribution at one random number."""
    temperature = _column([max(row.sampling.temperature, 1e-5) for row in rows], logits.device)
    draw = _column([uniform(row.sampling.seed, row.position) for row in rows], logits.device)
    probabilities = (logits / temperature).softmax(dim=-1)
    filtered = [i for i, row in enumerate(rows) if _is_filtered(row.sampling)]
    if not filtered:
        return _invert(probabilities, draw, best)
    index = torch.tensor(filtered, device=logits.device)
    picked = _sample_filtered(probabilities[index], draw[index], [rows[i].sampling for i in filtered])
    if len(filtered) == len(rows):
        return picked
    chosen = _invert(probabilities, draw, best)
    chosen[index] = picked
    return chosen


def _is_filtered(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)


def _invert(probabilities: torch.Tensor, draw: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """The first column at which the cumulative sum exceeds `draw` of the total; it has a probability above 0."""
    cumulative = probabilities.cumsum(dim=-1)
    above = cumulative > draw * cumulative[:, -1:]
    return torch.where(above[:, -1], above.to(torch.uint8).argmax(dim=-1), fallback)


def _sample_filtered(probabilities: torch.Tensor, draw: torch.Tensor, options: Sequence[Sampling]) -> torch.Tensor:
    """Among the best tokens; among more of them in the rows that these do not decide."""
    device, vocab = probabilities.device, probabilities.shape[-1]
    picked = torch.empty(len(options), dtype=torch.int64, device=device)
    rows = list(range(len(options)))
    # Whether a row is decided is known on the host: a GPU would have to be waited for.
    counts = [count for count in _CANDIDATES if 2 * count < vocab] if device.type == "cpu" else []
    for count in (*counts, vocab):
        index, asked = torch.tensor(rows, device=device), [options[row] for row in rows]
        values, ids = best_values(probabilities[index], count)
        kept = _keep(values, asked, vocab)
        picked[index] = _pick(values, ids, kept, draw[index])
        if count == vocab:
            break
        # What is kept is a beginning of the order: decided when it ends among these. Row by row, so that no row depends
        # on what else is in the batch.
        open_ended = zip(rows, asked, kept[:, -1].tolist(), strict=True)
        rows = [row for row, option, goes_on in open_ended if goes_on or option.top_k > count]
        if not rows:
            break
    return picked


def _keep(values: torch.Tensor, options: Sequence[Sampling], vocab: int) -> torch.Tensor:
    """Which of the descending probabilities stay: top-k, then top-p of what is left, then min-p."""
    device = values.device
    top_k = _column([float(option.top_k or vocab) for option in options], device)
    top_p = _column([option.top_p for option in options], device)
    min_p = _column([option.min_p for option in options], device)
    rank = torch.arange(values.shape[-1], device=device)
    kept = rank < top_k
    left = values.masked_fill(~kept, 0.0)
    # All of it where there is no top-k: the candidates at hand need not be all tokens.
    total = torch.where(top_k >= vocab, torch.ones_like(top_k), left.sum(dim=-1, keepdim=True))
    before = left.cumsum(dim=-1) - left
    # A token stays when the mass before it is below top_p: the smallest set that reaches it.
    kept &= ((before < top_p * total) | (top_p >= 1)) & (values >= min_p * values[:, :1])
    kept[:, 0] = True
    return kept


def _pick(values: torch.Tensor, ids: torch.Tensor, kept: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    first = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    return ids.gather(1, _invert(values.masked_fill(~kept, 0.0), draw, first).unsqueeze(1)).squeeze(1)
