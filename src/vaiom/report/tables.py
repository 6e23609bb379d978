"""One table, three spellings: HTML that sorts, Markdown, LaTeX in booktabs form.

Enters: a caption, columns, cells as text with the value they sort by. Leaves: text of the format asked for; what a cell
says is never taken for markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from vaiom.report.numbers import MINUS, NOTHING

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
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
_MARKDOWN = frozenset("\\`*_[]<>|~&$")
_LIGATURES = re.compile(r"([-,])(?=\1)")


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number that it sorts by; without one it sorts as words."""

    text: str
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    words: bool = False
    """Set to the left and sorted as words; numbers stand to the right."""
    about: str = ""
    """What the column means, for whoever points at its header."""


@dataclass(frozen=True, kw_only=True)
class Table:
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    strong: frozenset[int] = field(default_factory=frozenset)
    """Rows that are set in bold type."""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} has {len(row)} cells for {len(self.columns)} columns")

    def to_html(self) -> str:
        """A table in a box of its own that scrolls; its headers are buttons that sort."""
        heads = "".join(
            f'<th scope="col" aria-sort="none"{_css(column)}>'
            f'<button type="button"{_title(column.about)}>{html.escape(column.name)}</button></th>'
            for column in self.columns
        )
        body = "\n".join(
            f"<tr{' class=strong' if number in self.strong else ''}>{self._html_row(row)}</tr>"
            for number, row in enumerate(self.rows)
        )
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(self.caption)}">'
            f"<table><caption><span>{html.escape(self.caption)}</span></caption>\n"
            f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )

    def to_markdown(self) -> str:
        lines = [
            "| " + " | ".join(escape_markdown(column.name) for column in self.columns) + " |",
            "|" + "|".join(":---" if column.words else "---:" for column in self.columns) + "|",
        ]
        for number, row in enumerate(self.rows):
            cells = [escape_markdown(cell.text) for cell in row]
            if number in self.strong:
                cells = [f"**{cell}**" if cell.strip() else cell for cell in cells]
            lines.append("| " + " | ".join(cells) + " |")
        return f"**{escape_markdown(self.caption)}**\n\n" + "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A float for `\\usepackage{booktabs,textcomp}`."""
        lines = [
            r"\begin{table}[h]",
            r"\centering",
            rf"\caption{{{escape_latex(self.caption)}}}",
            rf"\begin{{tabular}}{{{''.join('l' if column.words else 'r' for column in self.columns)}}}",
            r"\toprule",
            " & ".join(escape_latex(column.name) for column in self.columns) + r" \\",
            r"\midrule",
        ]
        for number, row in enumerate(self.rows):
            cells = [escape_latex(cell.text) for cell in row]
            if number in self.strong:
                cells = [rf"\textbf{{{cell}}}" if cell else cell for cell in cells]
            # A bracket right after a line break would be read as its optional argument.
            lines.append("{}" + " & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def _html_row(self, row: Sequence[Cell]) -> str:
        out = []
        for index, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
            tag, scope = ("th", ' scope="row"') if index == 0 else ("td", "")
            key = "" if cell.value is None else f' data-value="{cell.value!r}"'
            out.append(f"<{tag}{scope}{_css(column)}{key}>{html.escape(cell.text)}</{tag}>")
        return "".join(out)


def words(text: str) -> Cell:
    return Cell(text)


def number(text: str, value: float | None) -> Cell:
    return Cell(text, None if value is None else float(value))


def facts(caption: str, rows: Sequence[Sequence[Cell]]) -> Table:
    """A table of two columns: what, and its value in words."""
    return Table(
        caption=caption, columns=[Column(name="what", words=True), Column(name="value", words=True)], rows=rows
    )


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is, two hyphens as two hyphens."""
    return _LIGATURES.sub(r"\1{}", "".join(_LATEX.get(character, character) for character in _one_line(text)))


def escape_markdown(text: str) -> str:
    """Text that neither ends a cell nor starts markup inside a line."""
    return "".join("\\" + character if character in _MARKDOWN else character for character in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _css(column: Column) -> str:
    return ' class="words"' if column.words else ""


def _title(about: str) -> str:
    return f' title="{html.escape(about)}"' if about else ""
