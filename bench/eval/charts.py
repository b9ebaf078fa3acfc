"""Small SVG charts for the report, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
WIDTH = 720
_LEFT, _RIGHT, _ROW, _TOP, _AXIS = 190, 60, 30, 8, 34


@dataclass(frozen=True)
class Bar:
    """`low`..`high` is drawn as a whisker over the bar from 0 to `value`."""

    label: str
    value: float
    low: float
    high: float
    text: str


def bars(rows: Sequence[Bar], unit: str, limit: float | None = None) -> str:
    """Horizontal bars; `limit` is the end of the axis."""
    end = limit or _nice(max((row.high for row in rows), default=1.0))
    height = _TOP + _ROW * len(rows) + _AXIS
    parts = [_axis(end, height, unit)]
    for place, row in enumerate(rows):
        y = _TOP + _ROW * place
        colour = COLOURS[place % len(COLOURS)]
        width = _x(row.value, end) - _LEFT
        middle = y + _ROW / 2 - 2
        low, high = _x(row.low, end), _x(row.high, end)
        parts.append(f'<text x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(row.label)}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 12}" fill="{colour}"/>')
        parts.append(
            f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}m0 -5v10M{low:.1f} {middle - 5:.1f}v10"/>'
        )
        parts.append(f'<text x="{high + 6:.1f}" y="{middle + 4:.1f}">{escape(row.text)}</text>')
    return _svg(height, parts)


def distributions(series: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    """For each name the share of its values that are below x."""
    series = [(name, sorted(values)) for name, values in series if values]
    end = _nice(max((values[-1] for _, values in series), default=1.0))
    height = 260
    bottom = height - _AXIS
    parts = [_axis(end, height, unit)]
    for place, (name, values) in enumerate(series):
        colour = COLOURS[place % len(COLOURS)]
        steps = [f"M{_LEFT} {bottom}"]
        for count, value in enumerate(values, 1):
            steps.append(f"H{_x(value, end):.1f}V{bottom - (bottom - _TOP) * count / len(values):.1f}")
        steps.append(f"H{WIDTH - _RIGHT}")
        parts.append(f'<path fill="none" stroke="{colour}" stroke-width="2" d="{"".join(steps)}"/>')
        y = _TOP + 16 + 20 * place
        parts.append(f'<rect x="8" y="{y - 9}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="26" y="{y + 2}">{escape(name)}</text>')
    return _svg(height, parts)


def _x(value: float, end: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, value / end))


def _axis(end: float, height: float, unit: str) -> str:
    bottom = height - _AXIS
    parts = []
    for tick in range(5):
        x, value = _x(end * tick / 4, end), end * tick / 4
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{WIDTH - _RIGHT + 8}" y="{bottom + 16}">{escape(unit)}</text>')
    return "".join(parts)


def _nice(value: float) -> float:
    """A round number that is not less."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in (1, 2, 4, 6, 8, 10) if power * step >= value)


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
