"""What a benchmark yields: figures, each with its spread and, where there is one, its target."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

Form = Literal["ratio", "percent", "share", "rate", "ns", "µs", "ms", "s", "kB", "MB", "count"]

_FORMS: dict[Form, str] = {
    "ratio": "{:.2f}×",
    "percent": "{:.0%}",
    "share": "{:.2%}",
    "rate": "{:,.0f}/s",
    "ns": "{:,.0f} ns",
    "µs": "{:.1f} µs",
    "ms": "{:.2f} ms",
    "s": "{:.2f} s",
    "kB": "{:.1f} kB",
    "MB": "{:.0f} MB",
    "count": "{:,.0f}",
}


class Figure(msgspec.Struct, frozen=True):
    """One measured number. `met` is None when it has no target and is there to compare with."""

    group: str
    name: str
    value: float
    form: Form
    low: float
    high: float
    target: str = ""
    met: bool | None = None

    @property
    def shown(self) -> str:
        """The value as people read it."""
        return show(self.value, self.form)

    @property
    def spread(self) -> str:
        """Lowest to highest of the rounds; empty when there was one."""
        return "" if self.low == self.high else f"{show(self.low, self.form)} – {show(self.high, self.form)}"

    @property
    def mark(self) -> str:
        """✓, ✗, or nothing."""
        return "" if self.met is None else "✓" if self.met else "✗"


def show(value: float, form: Form) -> str:
    """
    >>> show(1.534, "ratio"), show(0.47, "percent"), show(151234.5, "rate"), show(1.2, "ms")
    ('1.53×', '47%', '151,234/s', '1.20 ms')
    """
    return _FORMS[form].format(value)


def figure(group: str, name: str, rounds: Sequence[float], form: Form) -> Figure:
    """The median of some rounds, without a target."""
    return Figure(group, name, median(rounds), form, min(rounds), max(rounds))


def at_most(found: Figure, limit: float) -> Figure:
    """The same figure with a target that it must not exceed."""
    target = f"≤ {show(limit, found.form)}"
    return msgspec.structs.replace(found, target=target, met=found.value <= limit)


def at_least(found: Figure, limit: float) -> Figure:
    """The same figure with a target that it must reach."""
    target = f"≥ {show(limit, found.form)}"
    return msgspec.structs.replace(found, target=target, met=found.value >= limit)


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Round by round, one over the other: what disturbed a whole round disturbs its ratio least."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
