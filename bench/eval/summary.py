"""From outcomes to figures: one entry for each variant, with its difference from the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.eval.log import Outcome, Settings, by_variant
from bench.eval.statistics import bootstrap_difference, bootstrap_median_ratio, mcnemar, percentile, wilson
from bench.eval.variants import BASELINE, Variant

Run = dict[str, Any]
_ENGINE = ("step_seconds", "prefill_tokens", "decode_tokens", "prefix_hit_tokens")


def summarise(outcomes: Iterable[Outcome], settings: Settings) -> list[Run]:
    """One run for each variant, in the order in which they first occur. A question without an answer is wrong and has
    no latency."""
    table = by_variant(outcomes)
    baseline = next((rows for variant, rows in table.items() if variant == Variant(BASELINE)), None)
    return [_run(variant, rows, baseline, settings) for variant, rows in table.items()]


def _run(variant: Variant, rows: dict[str, Outcome], baseline: dict[str, Outcome] | None, settings: Settings) -> Run:
    outcomes = list(rows.values())
    right = sum(outcome.right for outcome in outcomes)
    run = {
        "strategy": variant.name,
        "layout": variant.layout,
        "granularity": variant.granularity,
        "label": variant.label,
        "questions": len(outcomes),
        "accuracy": round(right / len(outcomes), 4),
        "accuracy_ci95": _rounded(wilson(right, len(outcomes))),
        "unparsed": sum(outcome.given is None for outcome in outcomes),
        "failed": sum(outcome.error is not None for outcome in outcomes),
        "cut": sum(outcome.status == "incomplete" for outcome in outcomes),
        **_times(outcomes),
        **_tokens(outcomes),
        **_before_send(outcomes),
        "settings": settings,
    }
    if baseline is not None and variant != Variant(BASELINE):
        run["against"] = _against(baseline, rows)
    return run


def _times(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    latency = [outcome.latency_s for outcome in outcomes if outcome.latency_s is not None]
    first = [outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None]
    return {
        "latency_mean_s": _mean(latency, 3),
        **{f"latency_p{percent}_s": _round(percentile(latency, percent), 3) for percent in (50, 90, 99)},
        **{f"ttft_p{percent}_s": _round(percentile(first, percent), 3) for percent in (50, 90, 99)},
        "wall_mean_s": _mean([outcome.wall_s for outcome in outcomes], 2),
    }


def _tokens(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """`reused_share` of the prompts were in the KV cache at Send; `fresh` tokens were not."""
    answered = [outcome for outcome in outcomes if outcome.input_tokens]
    read = sum(outcome.input_tokens for outcome in answered)
    figures: dict[str, float | None] = {
        "reused_share": round(sum(outcome.cached_tokens for outcome in answered) / read, 4) if read else None,
        "fresh_tokens_at_send_p50": percentile([one.input_tokens - one.cached_tokens for one in answered], 50),
        "input_tokens_p50": percentile([outcome.input_tokens for outcome in answered], 50),
        "output_tokens_p50": percentile([outcome.output_tokens for outcome in answered], 50),
        "reused_tokens_per_question": _mean([outcome.cached_tokens for outcome in answered], 1),
    }
    counted = [outcome for outcome in answered if outcome.engine]
    for name in _ENGINE:
        values = [outcome.engine[name] for outcome in counted]
        figures[f"engine_{name}_per_question"] = _mean(values, 3 if name == "step_seconds" else 1)
    return figures


def _before_send(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    def count(value: Callable[[Outcome], float]) -> float | None:
        return _mean([value(outcome) for outcome in outcomes], 2)

    steps = sum(len(outcome.notes) + outcome.waits for outcome in outcomes)
    return {
        "notes_per_question": count(lambda outcome: len(outcome.notes)),
        "waits_per_question": count(lambda outcome: outcome.waits),
        "wait_share": round(sum(outcome.waits for outcome in outcomes) / steps, 4) if steps else None,
        "without_notes": sum(not outcome.notes for outcome in outcomes),
        "discarded_notes_per_question": count(lambda outcome: outcome.discarded_notes),
        "drafts_per_question": count(lambda outcome: outcome.drafts),
        "draft_used_tokens_per_question": count(lambda outcome: outcome.draft_used_tokens),
        "draft_wasted_tokens_per_question": count(lambda outcome: outcome.draft_wasted_tokens),
        "prefilled_before_send_per_question": count(lambda outcome: outcome.prefilled_before_send),
    }


def _against(baseline: dict[str, Outcome], rows: dict[str, Outcome]) -> dict[str, Any]:
    """On the questions of both. Positive differences and speed-ups above 1 are in favour of `rows`, except that a
    latency difference is in seconds more."""
    pairs = [(baseline[question], row) for question, row in rows.items() if question in baseline]
    if not pairs:
        return {"baseline": BASELINE, "questions": 0}
    only_baseline = sum(one.right and not other.right for one, other in pairs)
    only_this = sum(other.right and not one.right for one, other in pairs)
    rights = [float(one.right) for one, _ in pairs], [float(other.right) for _, other in pairs]
    compared = {
        "baseline": BASELINE,
        "questions": len(pairs),
        "only_baseline_right": only_baseline,
        "only_this_right": only_this,
        "mcnemar_p": round(mcnemar(only_baseline, only_this), 5),
        "accuracy_difference": round((only_this - only_baseline) / len(pairs), 4),
        "accuracy_difference_ci95": _rounded(bootstrap_difference(*rights)),
    }
    timed = [(one.latency_s, other.latency_s) for one, other in pairs if one.latency_s and other.latency_s]
    if timed:
        before, after = [one for one, _ in timed], [other for _, other in timed]
        compared |= {
            "latency_difference_s": round(statistics.mean(after) - statistics.mean(before), 3),
            "latency_difference_s_ci95": _rounded(bootstrap_difference(before, after)),
            "speedup_p50": round(statistics.median(before) / statistics.median(after), 3),
            "speedup_p50_ci95": _rounded(bootstrap_median_ratio(before, after)),
        }
    return compared


def _mean(values: Sequence[float], digits: int) -> float | None:
    return round(statistics.fmean(values), digits) if values else None


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in interval]
