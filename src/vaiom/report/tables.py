"""Tables, written once and shown in a terminal, on a sortable HTML page, in Markdown and in LaTeX.

A `Table` enters with values; text of one of the four formats leaves. No cell is ever taken for
markup of the format that it is written in.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable

NOTHING = "\N{EN DASH}"
"""Stands where a figure does not exist."""
MINUS = "\N{MINUS SIGN}"
LEAST_P_VALUE = 1e-4
"""Smaller p-values are shown as smaller than this."""
COLUMN_GAP = 2
"""Blanks between the columns of a table on a terminal."""

Pair = tuple[float, float]


def text(value: object) -> str:
    """Any value as it prints, None as a dash."""
    return NOTHING if value is None else str(value)


def prose(value: object) -> str:
    """Text that a terminal may break into lines."""
    return str(value)


def number(spec: str) -> Callable[[float | None], str]:
    """A formatter of numbers by a format specification, with a true minus sign."""

    def show(value: float | None) -> str:
        if value is None:
            return NOTHING
        return format(value, spec).replace("-", MINUS)

    return show


count = number(",")
"""A whole number with commas between thousands."""
bits = number(".4f")
"""A cost in bits per event."""
signed = number("+.4f")
"""A gain or loss in bits per event, always with its sign."""


def percent(share: float | None, digits: int = 1) -> str:
    """A share between 0 and 1 as a percentage; 0% and 100% are exactly none and exactly all."""
    if share is None:
        return NOTHING
    is_exact = share in (0.0, 1.0)
    shown_digits = 0 if is_exact else digits
    return f"{100 * share:.{shown_digits}f}%"


percent2 = partial(percent, digits=2)
"""A share as a percentage with two digits."""


def between(show: Callable[[float], str]) -> Callable[[Pair | None], str]:
    """A formatter of intervals whose ends are formatted by `show`."""

    def show_interval(pair: Pair | None) -> str:
        if pair is None:
            return "undefined"
        low, high = pair
        return f"[{show(low)}, {show(high)}]"

    return show_interval


interval = between(signed)
"""An interval of a gain in bits per event."""
percents = between(percent)
"""An interval of a share."""


def p_value(value: float | None, least: float = LEAST_P_VALUE) -> str:
    """A p-value to two digits; below `least` only that it is smaller."""
    if value is None:
        return NOTHING
    if value < least:
        return f"<{least:g}"
    spec = ".2g" if value < 0.1 else ".2f"
    return format(value, spec)


def ratio(part_and_whole: tuple[int, int]) -> str:
    """How many of how many, such as 5/6."""
    part, whole = part_and_whole
    return f"{part}/{whole}"


def moment(iso: str) -> str:
    """An ISO stamp as people write it: seconds only where there are any."""
    return iso.replace("T", " ").removesuffix(":00")


def side_of_zero(pair: Pair | None) -> int:
    """1 for an interval above zero, -1 below, 0 where it includes zero or does not exist."""
    if pair is None:
        return 0
    low, high = pair
    if low > 0:
        return 1
    return -1 if high < 0 else 0


@dataclass(frozen=True)
class Column:
    """One column of a table: its name, and how its values are found and shown."""

    name: str
    show: Callable[[Any], str] = text
    """Turns a value into text; text and prose are left-aligned, everything else right-aligned."""
    source: str | Callable[[Any], Any] = lambda item: item
    """Where `Table.of` finds the value in an item: a path of attributes, or a function."""
    about: str = ""
    """Its meaning, shown as a tooltip of its header."""

    @property
    def is_text(self) -> bool:
        """Whether it is left-aligned and sorted as text; numbers are right-aligned."""
        return self.show in (text, prose)

    def take(self, item: Any) -> Any:
        """The value of this column for an item."""
        find = attrgetter(self.source) if isinstance(self.source, str) else self.source
        return find(item)


@dataclass(frozen=True)
class Table:
    """Values under named columns, with a caption; each format is one method."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    """Values: numbers, pairs of numbers, text, or None where there is none."""
    strong: frozenset[int] = field(default_factory=frozenset)
    """Rows that are set in bold type, by their place from 0."""

    @classmethod
    def of(cls, caption: str, columns: Sequence[Column], items: Iterable[Any]) -> Table:
        """A table with a row per item, whose values the columns take from it."""
        rows = [[column.take(item) for column in columns] for item in items]
        return cls(caption, columns, rows)

    def formatted(self) -> list[list[str]]:
        """The text of every cell, row by row; strings stay as they are."""
        return [self._format_row(row) for row in self.rows]

    def _format_row(self, row: Sequence[Any]) -> list[str]:
        cells = []
        for column, value in zip(self.columns, row, strict=True):
            cells.append(value if isinstance(value, str) else column.show(value))
        return cells

    def to_terminal(self, width: int) -> Group:
        """For a screen of this width in characters.

        A wider table continues below itself, and each of its parts begins with the first column.
        With a column of prose it is fitted into the width instead: prose is broken into lines,
        numbers are never cut.
        """
        from rich.console import Group
        from rich.text import Text

        plain = str.maketrans({MINUS: "-", NOTHING: "-"})
        rows = [[cell.translate(plain) for cell in row] for row in self.formatted()]
        heads = [_fold(column) for column in self.columns]
        # As a table's own title the caption would be broken to the width of the columns.
        caption = Text(self.caption, style="bold")
        if any(column.show is prose for column in self.columns):
            every = list(range(len(heads)))
            return Group(caption, self._terminal_part(every, heads, rows, None))
        sizes = [_width_of(cells) for cells in zip(heads, *rows, strict=True)]
        shown: list[RichTable | Text] = [caption]
        for place, part in enumerate(_split_columns(sizes, width)):
            if place:
                shown.append(Text())
            total = sum(sizes[at] for at in part) + COLUMN_GAP * (len(part) - 1)
            shown.append(self._terminal_part(part, heads, rows, total))
        return Group(*shown)

    def _terminal_part(
        self, part: list[int], heads: list[str], rows: list[list[str]], width: int | None
    ) -> RichTable:
        """Some of the columns, by their places."""
        from rich.table import Table as RichTable

        out = RichTable(header_style="bold", pad_edge=False, box=None, width=width)
        for at in part:
            column = self.columns[at]
            justify: Any = "left" if column.is_text else "right"
            out.add_column(heads[at], justify=justify, no_wrap=column.show is not prose)
        for row in rows:
            out.add_row(*(row[at] for at in part))
        return out

    def to_html(self) -> str:
        """A table in a box of its own that scrolls; its headers are buttons that sort.

        Cells carry the number that they are sorted by, whatever is shown. Jinja takes the text as
        it is.
        """
        caption = html.escape(self.caption)
        heads = "".join(_html_head(column) for column in self.columns)
        lines = []
        for place, texts in enumerate(self.formatted()):
            style = " class=strong" if place in self.strong else ""
            cells = self._html_cells(self.rows[place], texts)
            lines.append(f"<tr{style}>{cells}</tr>")
        body = "\n".join(lines)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
            f"<table><caption><span>{caption}</span></caption>\n"
            f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )

    __html__ = to_html

    def _html_cells(self, row: Sequence[Any], texts: list[str]) -> str:
        """The cells of a row; its first cell is the header of the row."""
        cells: list[str] = []
        for column, value, shown in zip(self.columns, row, texts, strict=True):
            attributes = _html_class(column) + _sort_key(value)
            words = html.escape(shown)
            if cells:
                cells.append(f"<td{attributes}>{words}</td>")
            else:
                cells.append(f'<th scope="row"{attributes}>{words}</th>')
        return "".join(cells)

    def to_markdown(self) -> str:
        """A table of GitHub's Markdown under its caption in bold type."""
        caption = escape_markdown(self.caption)
        names = [escape_markdown(column.name) for column in self.columns]
        rules = [":---" if column.is_text else "---:" for column in self.columns]
        rule = "|".join(rules)
        lines = [f"**{caption}**", "", _markdown_line(names), f"|{rule}|"]
        for cells in self._escaped(escape_markdown, "**{}**"):
            lines.append(_markdown_line(cells))
        return "\n".join([*lines, ""])

    def to_latex(self) -> str:
        """A float for `\\usepackage{booktabs,textcomp}`."""
        alignment = "".join("l" if column.is_text else "r" for column in self.columns)
        caption = escape_latex(self.caption)
        names = [escape_latex(column.name) for column in self.columns]
        lines = [
            r"\begin{table}[h]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            _latex_line(names),
            r"\midrule",
        ]
        for cells in self._escaped(escape_latex, r"\textbf{{{}}}"):
            # A bracket right after a line break would be read as its optional argument.
            lines.append("{}" + _latex_line(cells))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def _escaped(self, escape: Callable[[str], str], strong: str) -> Iterator[list[str]]:
        """The escaped cells of every row, those of strong rows in bold."""
        for place, row in enumerate(self.formatted()):
            cells = [escape(cell) for cell in row]
            if place in self.strong:
                cells = [strong.format(cell) if cell else "" for cell in cells]
            yield cells


def facts(caption: str, rows: Mapping[str, str]) -> Table:
    """A table of two columns: a name and its value."""
    columns = [Column("what"), Column("value")]
    return Table(caption, columns, list(rows.items()))


def _fold(column: Column) -> str:
    """The header of a column on a terminal, where words over numbers stand below each other."""
    if column.is_text:
        return column.name
    return column.name.replace(" ", "\n")


def _width_of(cells: Iterable[str]) -> int:
    """Characters of the longest line in a column."""
    from rich.cells import cell_len

    lines = "\n".join(cells).split("\n")
    return max(cell_len(line) for line in lines)


def _split_columns(sizes: Sequence[int], width: int) -> list[list[int]]:
    """The places of columns of these sizes in parts that fit a width, each with the first one.

    A part has one further column at least, however wide that is.
    """
    if not sizes:
        return []
    of_first = sizes[0] + COLUMN_GAP
    part = [0]
    parts = [part]
    used = of_first
    for place, size in enumerate(sizes[1:], start=1):
        if used + size > width and len(part) > 1:
            part = [0]
            parts.append(part)
            used = of_first
        part.append(place)
        used += size + COLUMN_GAP
    return parts


def _html_class(column: Column) -> str:
    """Words are aligned to the left by the page's style sheet."""
    return ' class="words"' if column.is_text else ""


def _html_head(column: Column) -> str:
    """The header of a column: a button that sorts by it, with its meaning as a tooltip."""
    name = html.escape(column.name)
    about = html.escape(column.about)
    title = f' title="{about}"' if about else ""
    button = f'<button type="button"{title}>{name}</button>'
    return f'<th scope="col" aria-sort="none"{_html_class(column)}>{button}</th>'


def _sort_key(value: Any) -> str:
    """The number that a cell is sorted by: of a pair the first; words are sorted as they stand."""
    if isinstance(value, tuple):
        value = value[0]
    if value is None or isinstance(value, str):
        return ""
    return f' data-value="{float(value)!r}"'


def _markdown_line(cells: Iterable[str]) -> str:
    """A row between bars; cells are escaped already."""
    return "| " + " | ".join(cells) + " |"


def _latex_line(cells: Iterable[str]) -> str:
    """A row between ampersands; cells are escaped already."""
    return " & ".join(cells) + r" \\"


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\symbol{34}",
        "'": r"\textquotesingle{}",
        "`": r"\textasciigrave{}",
        MINUS: r"$-$",
        NOTHING: r"\textendash{}",
    }
)
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~&$"})
_LIGATURES = re.compile(r"([-,])(?=\1)")


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is, two hyphens as two hyphens; blanks are folded."""
    words = " ".join(text.split()).translate(_LATEX)
    return _LIGATURES.sub(r"\1{}", words)


def escape_markdown(text: str) -> str:
    """Text that neither ends a cell nor starts markup inside a line; blanks are folded."""
    return " ".join(text.split()).translate(_MARKDOWN)
