"""Small charts as SVG, drawn here: no library, no script, and colours by classes of the style sheet."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup, escape

_WIDTH: Final = 96
_HEIGHT: Final = 22
_FEWEST: Final = 20
# What fills the height at least: one message more or less is no peak.
_LOWEST: Final = 5.0


def sparkline(values: Sequence[float], label: str, *, kind: str = "depth") -> Markup:
    """Return a line of the last values, the newest at the right edge; the label is read by screen readers."""
    if len(values) < 2:  # noqa: PLR2004 - a line needs two points
        return Markup(
            '<svg class="spark" viewBox="0 0 {w} {h}" aria-hidden="true"><path class="spark-rest" '
            'd="M0 {y}H{w}"/></svg>'
        ).format(w=_WIDTH, h=_HEIGHT, y=_HEIGHT - 1)
    # A short history fills a part of the width only, so that it does not look like a long one.
    shown, slots = list(values), max(len(values), _FEWEST)
    top, step = max(*shown, _LOWEST), _WIDTH / (slots - 1)
    left = _WIDTH - step * (len(shown) - 1)
    points = [(left + step * at, _HEIGHT - 1 - (_HEIGHT - 3) * value / top) for at, value in enumerate(shown)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{points[0][0]:.1f},{_HEIGHT} {line} {_WIDTH},{_HEIGHT}"
    return Markup(
        '<svg class="spark spark-{kind}" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
        '<polygon points="{area}"/><polyline points="{line}"/></svg>'
    ).format(kind=kind, w=_WIDTH, h=_HEIGHT, label=label, area=area, line=line)


def bar(parts: Sequence[tuple[str, float]], whole: float, label: str) -> Markup:
    """Return a bar of coloured parts, each a class and an amount, of which `whole` fills the width."""
    drawn, at = Markup(""), 0.0
    for kind, amount in parts:
        width = 100 * amount / whole if whole else 0
        if amount:
            # Something that is there is seen, however little of the whole it is.
            width = max(width, 1.5)
            drawn += Markup('<rect class="part-{}" x="{:.2f}" width="{:.2f}" height="6"/>').format(kind, at, width)
        at += width
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="6"/>{}</svg>'
    ).format(escape(label), drawn)
