"""The figure of the README: bars of ours beside its peers, from the recorded tables, for light and for dark pages."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from benchmarks.plots.recorded import Table


class Panel(NamedTuple):
    """One comparison: what is said above its bars, and where the record has the numbers."""

    text: str
    title: str
    column: str
    # The case of each who is shown; ours is the first.
    cases: tuple[str, ...]


PANELS: Final = (
    Panel(
        "Draining a backlog of 20,000, one process: messages a second",
        "peers: draining 20,000, one process",
        "msg/s",
        ("ours", "pgqueuer, best", "original, best", "procrastinate, best"),
    ),
    Panel(
        "Every message fails twice before it succeeds: messages a second",
        "peers: 4,000 messages that fail twice",
        "msg/s",
        ("ours", "pgqueuer, best", "original, best", "procrastinate, best"),
    ),
    Panel(
        "From commit to handler on an idle queue: milliseconds, p50 (less is better)",
        "peers: latency on an idle queue",
        "p50, ms",
        ("ours", "pgqueuer", "original", "procrastinate"),
    ),
)
NAMES: Final = {
    "ours": "faststream-outbox",
    "pgqueuer": "PgQueuer",
    "original": "the original",
    "procrastinate": "Procrastinate",
}
# A card of its own, because a page may be darker or lighter than the reader's system says.
_STYLE: Final = """\
    .card{fill:#fff;stroke:#d0d7de}.t{fill:#1f2328;font-weight:600}.n{fill:#1f2328}.ours{fill:#0b6e4f}.peer{fill:#afb8c1}
    .best{font-weight:700}
    @media (prefers-color-scheme: dark){
      .card{fill:#0d1117;stroke:#3d444d}.t{fill:#f0f6fc}.n{fill:#d1d7e0}.ours{fill:#3fb68b}.peer{fill:#59636e}
    }"""
_WIDTH: Final = 680
_LEFT: Final = 186
_LONGEST: Final = 400
_LINE: Final = 26
_PANEL: Final = 40 + 4 * _LINE


def described(tables: Mapping[str, Table]) -> str:
    """Return the figure in words, for readers who do not see it: every number beside its name."""
    return " ".join(_sentence(panel, tables[panel.title]) for panel in PANELS)


def bars(tables: Mapping[str, Table]) -> str:
    """Draw all panels below each other, and write every number beside its bar."""
    height = len(PANELS) * _PANEL + 16
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"',
            '  role="img" aria-labelledby="title"',
            "  font-family=\"system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif\" font-size=\"15\">",
            '  <title id="title">faststream-outbox beside its peers</title>',
            f"  <style>\n{_STYLE}\n  </style>",
            f'  <rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="10"/>',
            *(
                line
                for number, panel in enumerate(PANELS)
                for line in _panel(panel, tables[panel.title], 36 + number * _PANEL)
            ),
            "</svg>\n",
        )
    )


def _sentence(panel: Panel, table: Table) -> str:
    shown = (f"{NAMES[case.partition(',')[0]]} {_number(table[case][panel.column])}" for case in panel.cases)
    return f"{panel.text}: {', '.join(shown)}."


def _panel(panel: Panel, table: Table, top: int) -> Iterator[str]:
    values = {case: table[case][panel.column] for case in panel.cases}
    most = max(values.values())
    yield f'  <text class="t" x="24" y="{top}">{panel.text}</text>'
    for number, (case, value) in enumerate(values.items()):
        name = case.partition(",")[0]
        kind, weight = ("ours", "n best") if name == "ours" else ("peer", "n")
        y, width = top + 12 + number * _LINE, max(2.0, _LONGEST * value / most)
        yield f'  <text class="{weight}" x="{_LEFT - 12}" y="{y + 15}" text-anchor="end">{NAMES[name]}</text>'
        yield f'  <rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="20" rx="2"/>'
        yield f'  <text class="{weight}" x="{_LEFT + width + 8:.1f}" y="{y + 15}">{_number(value)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
