"""Draws the diagrams' parts as SVG: boxes, lanes, arrows, bands; one look for all, in light and in dark colours.

A picture is 480 units wide, so that its text can be read on a phone. It has its own background and follows the colours
of the page (`prefers-color-scheme`, which a browser takes from the page that shows the image).
"""

from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

WIDTH: Final = 480
STEP: Final = 34  # from one arrow of a sequence to the next

Kind = Literal["plain", "yours", "table", "step", "bad", "note"]

# The colours of each kind: fill and line in light, then in dark.
_COLOURS: Final[dict[str, tuple[str, str, str, str]]] = {
    "plain": ("#f1f5f9", "#94a3b8", "#1e293b", "#64748b"),
    "yours": ("#fef3c7", "#d97706", "#422006", "#f59e0b"),
    "table": ("#dcfce7", "#16a34a", "#052e16", "#22c55e"),
    "step": ("#dbeafe", "#2563eb", "#172554", "#60a5fa"),
    "bad": ("#fee2e2", "#dc2626", "#450a0a", "#f87171"),
    "note": ("#ffffff", "#94a3b8", "#0f172a", "#64748b"),
}
# The classes: t text, s small, b bold, k kept clear of lines behind it, x an error; l a line, d dashed, f failed, h the
# head of an arrow.
_LIGHT: Final = (
    ".bg{fill:#fff}.k{stroke:#fff}.t{fill:#0f172a}.s{fill:#475569}.l{stroke:#334155}.h{fill:#334155}.x{fill:#b91c1c}"
)
_DARK: Final = (
    ".bg{fill:#0f172a}.k{stroke:#0f172a}.t{fill:#f1f5f9}.s{fill:#cbd5e1}.l{stroke:#cbd5e1}.h{fill:#cbd5e1}"
    ".x{fill:#fca5a5}"
)


def _style() -> str:
    light = "".join(f".{kind}{{fill:{fill};stroke:{line}}}" for kind, (fill, line, _, _) in _COLOURS.items())
    dark = "".join(f".{kind}{{fill:{fill};stroke:{line}}}" for kind, (_, _, fill, line) in _COLOURS.items())
    fixed = ".s{font-size:13px}.b{font-weight:600}.l{fill:none;stroke-width:1.5}.d{stroke-dasharray:5 4}"
    fixed += ".k{paint-order:stroke;stroke-width:5px;stroke-linejoin:round}"
    failed = ".f{stroke:#dc2626}@media (prefers-color-scheme:dark){.f{stroke:#f87171}}"
    return f"{fixed}{_LIGHT}{light}@media (prefers-color-scheme:dark){{{_DARK}{dark}}}{failed}"


@dataclass
class Drawing:
    """A picture that grows downwards: `y` is where the next part goes."""

    title: str
    about: str
    y: int = 16
    _behind: list[str] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, look: str = "t", anchor: str = "middle") -> None:
        """Write words; `look` is t (text), s (small), b (bold), x (an error), or several of them."""
        self._parts.append(f'<text class="{look}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: Kind, *lines: str, look: str = "t") -> None:
        """Draw a box with lines of words in its middle."""
        shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        self._parts.append(shape)
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 * number, line, look if number == 0 else "s")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False, failed: bool = False) -> None:
        """Draw an arrow; one that failed is red and ends in a cross."""
        look = "l" + (" d" if dashed else "") + (" f" if failed else "")
        end = "" if failed else ' marker-end="url(#a)"'
        self._parts.append(f'<path class="{look}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"{end}/>')
        if failed:
            self._parts.append(f'<path class="l f" stroke-width="2.5" d="m{x2 - 6:g} {y2 - 6:g} 12 12m0-12-12 12"/>')

    def band(self, top: float, bottom: float, kind: Kind, words: str) -> None:
        """Put a coloured area behind what was drawn, with words at its upper left."""
        shape = f'<rect class="{kind}" x="8" y="{top:g}" width="{WIDTH - 16}" height="{bottom - top:g}" rx="6"'
        self._behind.append(f'{shape} fill-opacity=".55" stroke-opacity=".5"/>')
        self.text(18, top + 18, words, "s b k", "start")

    def svg(self) -> str:
        """Return the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y}" width="{WIDTH}" height="{self.y}" '
            'font-family="system-ui, sans-serif" font-size="15" role="img" aria-labelledby="t d">'
        )
        marker = (
            '<marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="h" d="M0 0 10 5 0 10z"/></marker>'
        )
        lines = [
            head,
            f'<title id="t">{escape(self.title)}</title>',
            f'<desc id="d">{escape(self.about)}</desc>',
            f"<defs><style>{_style()}</style>{marker}</defs>",
            f'<rect class="bg" width="{WIDTH}" height="{self.y}" rx="8"/>',
            *self._behind,
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


class Sequence(Drawing):
    """Lanes side by side, and arrows between them from top to bottom."""

    def lanes(self, *lanes: tuple[str, float, Kind]) -> None:
        """Draw the heads of the lanes: name, middle and kind of each."""
        self._middle = {name: x for name, x, _ in lanes}
        width = min(112, min(b - a for a, b in zip(self._xs, self._xs[1:], strict=False)) - 8)
        for name, x, kind in lanes:
            self.box(x - width / 2, self.y, width, 34, kind, name, look="s b")
        self.y += 50
        self._top = self.y - 16

    @property
    def _xs(self) -> list[float]:
        return sorted(self._middle.values())

    def message(self, source: str, target: str, words: str, *, dashed: bool = False, failed: bool = False) -> None:
        """Draw an arrow from lane to lane, with words above it."""
        start, end = self._middle[source], self._middle[target]
        self.y += STEP
        # A cross stands before the lane that was not reached.
        stop = end - (18 if end > start else -18) if failed else end
        self.arrow(start, self.y, stop, self.y, dashed=dashed, failed=failed)
        self.text((start + end) / 2, self.y - 7, words, "s x" if failed else "s")

    def note(self, lane: str, *lines: str, kind: Kind = "note", width: float = 112) -> None:
        """Put a box with words on a lane."""
        height = 12 + 18 * len(lines)
        x = min(max(self._middle[lane] - width / 2, 14), WIDTH - 14 - width)
        self.y += 14
        self.box(x, self.y, width, height, kind, *lines, look="s")
        self.y += height

    def phase(self, top: int, kind: Kind, words: str) -> None:
        """Close the band that began at `top`."""
        self.y += 14
        self.band(top, self.y, kind, words)
        self.y += 10

    def end(self) -> None:
        """Draw the lines of the lanes, behind everything."""
        lines = [f'<path class="l d" opacity=".45" d="M{x:g} {self._top}V{self.y}"/>' for x in self._xs]
        self._behind += lines
        self.y += 8
