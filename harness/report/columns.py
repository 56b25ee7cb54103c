"""Tables that fit a terminal: columns are omitted, the least important first, but never a name or a status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNLIMITED = 100_000
"""Width for output that is not a terminal: files and pipes get whole lines."""
GAP, EDGES = 3, 2
"""Cells between two columns and at both ends of a line, as in `box.SIMPLE_HEAD`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of plain text.

    rank: 0 is never omitted; of the others the largest is omitted first. least: width down to which the cells may
    wrap (0: they do not wrap).
    """

    title: str
    cells: Sequence[str]
    rank: int = 0
    right: bool = True
    least: int = 0

    @property
    def natural(self) -> int:
        """Width at which nothing wraps."""
        return max((cell_len(text) for text in (self.title, *self.cells)), default=0)

    @property
    def needed(self) -> int:
        """Smallest width that is acceptable."""
        return min(self.natural, self.least) if self.least else self.natural


def fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], list[Column]]:
    """The columns that fit into `width`, and those omitted; columns of rank 0 stay at any width."""
    kept = list(columns)
    while needed(kept) > width:
        worst = max(kept, key=lambda column: column.rank, default=None)
        if worst is None or not worst.rank:
            break
        kept.remove(worst)
    return kept, [column for column in columns if column not in kept]


def needed(columns: Sequence[Column]) -> int:
    """Smallest width of a table of the columns."""
    return sum(column.needed for column in columns) + GAP * (len(columns) - 1) + EDGES


def table(columns: Sequence[Column], *, title: str | None = None) -> Table:
    """A Rich table of the columns; cells are plain text, not markup."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column in columns:
        made.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            overflow="fold",
            min_width=column.needed or None,
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        made.add_row(*(Text(cell) for cell in cells))
    return made


def print_columns(columns: Sequence[Column], console: Console, *, title: str | None = None) -> None:
    """Print as many columns as fit the console, and name the omitted ones.

    If not even names and statuses fit side by side, each row becomes a paragraph.
    """
    kept, left_out = fitting(columns, console.width)
    if needed(kept) <= console.width:
        console.print(table(kept, title=title))
    else:
        _print_paragraphs(kept, console, title)
    if left_out:
        names = ", ".join(column.title for column in left_out)
        console.print(f"left out at {console.width} columns: {names}", highlight=False, markup=False)


def _print_paragraphs(columns: Sequence[Column], console: Console, title: str | None) -> None:
    first, *rest = columns
    if title:
        console.print(title, highlight=False, markup=False)
    for index, name in enumerate(first.cells):
        console.print(Text(name, overflow="fold"))
        for column in rest:
            console.print(Text(f"  {column.title} {column.cells[index]}".rstrip(), overflow="fold"))


def open_console() -> Console:
    """A console on standard output: as wide as the terminal, without limit for a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else UNLIMITED)
