"""Tables for terminal, sortable HTML, Markdown and LaTeX; no cell is ever taken for markup."""

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

NOTHING = "\N{EN DASH}"
"""Stands where a figure does not exist."""
MINUS = "\N{MINUS SIGN}"

Pair = tuple[float, float]


def text(value: object) -> str:
    return NOTHING if value is None else str(value)


def prose(value: object) -> str:
    """Text that a terminal may break into lines."""
    return str(value)


def number(spec: str) -> Callable[[float | None], str]:
    """A formatter of numbers, with a true minus sign."""
    return lambda value: NOTHING if value is None else format(value, spec).replace("-", MINUS)


count, bits, signed = number(","), number(".4f"), number("+.4f")


def percent(share: float | None, digits: int = 1) -> str:
    """A share; exactly none and exactly all differ from what rounds to them."""
    if share is None:
        return NOTHING
    return f"{100 * share:.0f}%" if share in (0.0, 1.0) else f"{100 * share:.{digits}f}%"


def between(show: Callable[[float], str]) -> Callable[[Pair | None], str]:
    """A formatter of intervals whose ends are formatted by `show`."""
    return lambda pair: "undefined" if pair is None else f"[{show(pair[0])}, {show(pair[1])}]"


percent2, interval, percents = partial(percent, digits=2), between(signed), between(percent)


def p_value(value: float | None, least: float = 1e-4) -> str:
    if value is None:
        return NOTHING
    return f"<{least:g}" if value < least else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def ratio(part_and_whole: tuple[int, int]) -> str:
    return "{}/{}".format(*part_and_whole)


def moment(iso: str) -> str:
    """A stamp as people write it: seconds only where there are any."""
    return iso.replace("T", " ").removesuffix(":00")


def side_of_zero(pair: Pair | None) -> int:
    """1 for an interval above zero, -1 below, 0 where it includes zero or does not exist."""
    return 0 if pair is None or pair[0] <= 0 <= pair[1] else 1 if pair[0] > 0 else -1


@dataclass(frozen=True)
class Column:
    """A name, and the format of its values."""

    name: str
    show: Callable[[Any], str] = text
    source: str | Callable[[Any], Any] = lambda item: item
    """In tables with a row per item: the path of an attribute of the item, or a function of the
    item.
    """
    about: str = ""
    """Its meaning, shown as a tooltip of its header."""

    @property
    def is_text(self) -> bool:
        """Whether it is left-aligned and sorted as text; numbers are right-aligned."""
        return self.show in (text, prose)

    def take(self, item: Any) -> Any:
        return attrgetter(self.source)(item) if isinstance(self.source, str) else self.source(item)


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    """Values: numbers, pairs of numbers, text, or None where there is none."""
    strong: frozenset[int] = field(default_factory=frozenset)
    """Rows that are set in bold type."""

    @classmethod
    def of(cls, caption: str, columns: Sequence[Column], items: Iterable[Any]) -> Table:
        """A row per item, with the value that each column takes from it."""
        return cls(caption, columns, [[each.take(item) for each in columns] for item in items])

    def formatted(self) -> list[list[str]]:
        """The text of every cell, row by row; strings stay as they are."""
        pairs = ([*zip(self.columns, row, strict=True)] for row in self.rows)
        return [
            [each if isinstance(each, str) else column.show(each) for column, each in row]
            for row in pairs
        ]

    def to_terminal(self, width: int) -> Group:
        """For a screen of this width; a wider table continues below, each part with the first
        column.
        """
        from rich.cells import cell_len
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        plain, gap = str.maketrans({MINUS: "-", NOTHING: "-"}), 2
        heads = [
            column.name if column.is_text else column.name.replace(" ", "\n")
            for column in self.columns
        ]
        rows = [[cell.translate(plain) for cell in row] for row in self.formatted()]
        # Numbers are never cut, and prose is broken into lines.
        columns = zip(heads, *rows, strict=True)
        sizes = [
            max(cell_len(line) for cell in cells for line in cell.split("\n")) for cells in columns
        ]
        wraps, parts = any(column.show is prose for column in self.columns), list[list[int]]()
        for place, size in enumerate(sizes):
            full = parts and sum(sizes[each] + gap for each in parts[-1]) + size > width
            if not parts or (full and not wraps and len(parts[-1]) > 1):
                parts.append([0] if place else [])
            parts[-1].append(place)
        # As a table's own title the caption would be broken to the width of the columns.
        shown: list[RichTable | Text] = [Text(self.caption, style="bold")]
        for part in parts:
            total = sum(sizes[each] + gap for each in part) - gap
            out = RichTable(
                header_style="bold", pad_edge=False, box=None, width=None if wraps else total
            )
            for each in part:
                column = self.columns[each]
                justify: Any = "left" if column.is_text else "right"
                out.add_column(heads[each], justify=justify, no_wrap=column.show is not prose)
            for row in rows:
                out.add_row(*(row[each] for each in part))
            shown += [Text(), out] if part is not parts[0] else [out]
        return Group(*shown)

    def to_html(self) -> str:
        """A table in a box of its own that scrolls; its headers are buttons that sort."""
        caption, heads, lines = html.escape(self.caption), [], []
        css = [' class="words"' if column.is_text else "" for column in self.columns]
        for column, style in zip(self.columns, css, strict=True):
            title = f' title="{html.escape(column.about)}"' if column.about else ""
            button = f'<button type="button"{title}>{html.escape(column.name)}</button>'
            heads.append(f'<th scope="col" aria-sort="none"{style}>{button}</th>')
        for number, (row, texts) in enumerate(zip(self.rows, self.formatted(), strict=True)):
            cells: list[str] = []
            for value, text, style in zip(row, texts, css, strict=True):
                tag, scope = ("td", "") if cells else ("th", ' scope="row"')
                # Pairs sort by their first number, what is no number as words.
                key = value[0] if isinstance(value, tuple) else value
                sorts_by = (
                    "" if key is None or isinstance(key, str) else f' data-value="{float(key)!r}"'
                )
                cells.append(f"<{tag}{scope}{style}{sorts_by}>{html.escape(text)}</{tag}>")
            lines.append(
                f"<tr{' class=strong' if number in self.strong else ''}>{''.join(cells)}</tr>"
            )
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
            f"<table><caption><span>{caption}</span></caption>\n<thead><tr>{''.join(heads)}</tr></thead>\n"
            "<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
        )

    __html__ = to_html

    def to_markdown(self) -> str:
        lines = [
            "| " + " | ".join(escape_markdown(column.name) for column in self.columns) + " |",
            "|" + "|".join(":---" if column.is_text else "---:" for column in self.columns) + "|",
        ]
        lines += [
            "| " + " | ".join(cells) + " |" for cells in self._escaped(escape_markdown, "**{}**")
        ]
        return f"**{escape_markdown(self.caption)}**\n\n" + "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A float for `\\usepackage{booktabs,textcomp}`."""
        alignment = "".join("l" if column.is_text else "r" for column in self.columns)
        lines = [
            r"\begin{table}[h]",
            r"\centering",
            rf"\caption{{{escape_latex(self.caption)}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(escape_latex(column.name) for column in self.columns) + r" \\",
            r"\midrule",
        ]
        # A bracket right after a line break would be read as its optional argument.
        lines += [
            "{}" + " & ".join(cells) + r" \\"
            for cells in self._escaped(escape_latex, r"\textbf{{{}}}")
        ]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def _escaped(self, escape: Callable[[str], str], strong: str) -> Iterator[list[str]]:
        """The escaped cells of every row, those of strong rows in bold."""
        for number, row in enumerate(self.formatted()):
            cells = [escape(cell) for cell in row]
            yield [
                strong.format(cell) if cell and number in self.strong else cell for cell in cells
            ]


def facts(caption: str, rows: Mapping[str, str]) -> Table:
    """A table of two columns: a name and its value."""
    return Table(caption, [Column("what"), Column("value")], list(rows.items()))


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
    """Text that LaTeX sets as it is, two hyphens as two hyphens."""
    return _LIGATURES.sub(r"\1{}", " ".join(text.split()).translate(_LATEX))


def escape_markdown(text: str) -> str:
    """Text that neither ends a cell nor starts markup inside a line."""
    return " ".join(text.split()).translate(_MARKDOWN)
