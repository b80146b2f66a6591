"""A bar chart as SVG, readable on light and on dark pages."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LABELS, _ROW, _TOP = 820, 340, 26, 44
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.ours{fill:#2f81f7}.other{fill:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.other{fill:#6e7681}}"
)


class Bar(NamedTuple):
    """One bar: what it is, how long, what is written beside it, and whether it is Forge's."""

    label: str
    value: float
    shown: str
    ours: bool


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars on one scale that starts at zero."""
    height = _TOP + _ROW * len(bars) + 10
    scale = (_WIDTH - _LABELS - 90) / max(bar.value for bar in bars)
    rows = []
    for number, bar in enumerate(bars):
        y = _TOP + _ROW * number
        length = max(1.0, bar.value * scale)
        kind = "ours" if bar.ours else "other"
        rows.append(
            f'<text x="{_LABELS - 10}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect class="{kind}" x="{_LABELS}" y="{y}" width="{length:.1f}" height="18" rx="3"/>'
            f'<text x="{_LABELS + length + 8:.1f}" y="{y + 14}">{escape(bar.shown)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<text class="title" x="10" y="24">{escape(title)}</text>\n' + "\n".join(rows) + "\n</svg>\n"
    )
