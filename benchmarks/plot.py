"""Lines on two logarithmic axes as SVG, readable on light and on dark pages."""

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 820, 380, 70, 230, 50, 50
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.grid{stroke:#8c959f;stroke-opacity:.3}"
    ".l0{stroke:#2f81f7;fill:#2f81f7}.l1{stroke:#db6d28;fill:#db6d28}.l2{stroke:#3fb950;fill:#3fb950}"
    ".l3{stroke:#a371f7;fill:#a371f7}polyline{fill:none!important;stroke-width:2}text{stroke:none!important}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


class Line(NamedTuple):
    """One line: what it is, and its points."""

    label: str
    points: Sequence[tuple[float, float]]


def plot(title: str, across: str, upward: str, lines: Sequence[Line]) -> str:
    """Every point is marked; both axes go by powers of ten."""
    left, right = _ends(x for line in lines for x, _ in line.points)
    low, high = _ends(y for line in lines for _, y in line.points)

    def place(x: float, y: float) -> tuple[float, float]:
        wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return (
            _LEFT + wide * (log10(x) - left) / (right - left),
            _HEIGHT - _BOTTOM - tall * (log10(y) - low) / (high - low),
        )

    parts = []
    for power in range(left, right + 1):
        x, bottom = place(10.0**power, 10.0**low)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{10**power:,}</text>')
    for power in range(low, high + 1):
        x, y = place(10.0**left, 10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for number, line in enumerate(lines):
        points = [place(*point) for point in line.points]
        parts.append(f'<polyline class="l{number}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        parts += [f'<circle class="l{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points]
        y = _TOP + 22 * number + 10
        parts.append(f'<circle class="l{number}" cx="{_WIDTH - _RIGHT + 20}" cy="{y - 4}" r="5"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 32}" y="{y}">{escape(line.label)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH}" height="{_HEIGHT}"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n'
        f'<text class="title" x="10" y="24">{escape(title)}</text>\n'
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>\n'
        f'<text x="10" y="{_TOP - 6}">{escape(upward)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _ends(values: Iterable[float]) -> tuple[int, int]:
    """The powers of ten around all values, never the same."""
    logs = [log10(value) for value in values]
    low, high = floor(min(logs)), ceil(max(logs))
    return low, max(high, low + 1)
