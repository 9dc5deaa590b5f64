"""How wide the columns of a table are in a terminal: what can be broken into lines, and in which order."""

from dataclasses import dataclass
from textwrap import wrap
from typing import Final

# Two spaces keep columns apart that hold single spaces.
GAP: Final = "  "
# No column of texts is made narrower, so that it can still be read; and no head.
_NARROWEST: Final = 6
_NARROWEST_HEAD: Final = 4


@dataclass(frozen=True)
class Texts:
    """The texts of a column; cells that stay whole are not broken, so that they can be read and copied."""

    head: str
    cells: list[str]
    whole: bool

    def least(self) -> tuple[int, int, int, int]:
        """Return the widths that are tried one after the other: each breaks more."""
        word_of_head, cell = _longest(self.head.split()), _longest(self.cells)
        heads_between_words = max(cell, word_of_head)
        if self.whole:
            heads_inside_words = max(cell, min(word_of_head, _NARROWEST_HEAD))
            return heads_between_words, heads_between_words, heads_between_words, heads_inside_words
        word = _longest([each for text in self.cells for each in text.split()])
        return heads_between_words, max(word, word_of_head), max(_NARROWEST, word_of_head), _NARROWEST

    def wrapped_head(self, width: int) -> str:
        """Return the head in lines of this width."""
        return "\n".join(wrap(self.head, width))


def fits(columns: list[Texts], room: int) -> bool:
    """Return whether the columns fit if nothing is broken inside a word."""
    return sum(each.least()[1] for each in columns) + len(GAP) * (len(columns) - 1) <= room


def fit(columns: list[Texts], room: int) -> list[int]:
    """Return widths that fit; if none do, the least ones: a wider line is left to the terminal."""
    widths = [max(len(each.head), _longest(each.cells)) for each in columns]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - room
    for least in zip(*(each.least() for each in columns), strict=True):
        while excess > 0 and (wide := [at for at, width in enumerate(widths) if width > least[at]]):
            widths[max(wide, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths


def _longest(texts: list[str]) -> int:
    return max(map(len, texts), default=0)
