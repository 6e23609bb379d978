"""A table says the same in every format, whatever its cells contain."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_runs import Page
from rich.console import Console

from vaiom.report.tables import (
    MINUS,
    NOTHING,
    Column,
    Table,
    bits,
    count,
    escape_latex,
    escape_markdown,
    interval,
    p_value,
    percent,
    percent2,
    prose,
    ratio,
    side_of_zero,
    signed,
    text,
)

TEXTS = st.text(st.characters(exclude_categories=["C"]), max_size=12)
TRAPS = st.sampled_from(
    [
        "<b>",
        "a|b",
        "\\",
        "\\\\",
        "100%",
        "x_y_z",
        "$5$",
        "*bold*",
        "[link](there)",
        "[0.1]",
        "--",
        "---",
        "&amp;",
        "{",
        "^~#",
    ]
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CELLS = TEXTS | TRAPS | st.none() | NUMBERS
FORMATS = st.sampled_from([text, prose, bits, signed, percent, p_value])

# How LaTeX reads what we write, token by token.
READ = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    r"\textquotesingle{}": "'",
    r"\textasciigrave{}": "`",
    r"\textendash{}": NOTHING,
    r"\symbol{34}": '"',
    "$-$": MINUS,
    "{}": "",
    **{"\\" + character: character for character in "&%$#_{}"},
}
TOKEN = re.compile(
    "|".join(re.escape(token) for token in sorted(READ, key=len, reverse=True)) + "|.", re.DOTALL
)


def one_line(text: str) -> str:
    return " ".join(text.split())


def read_latex(text: str) -> str:
    tokens = TOKEN.findall(text)
    bare = [token for token in tokens if token not in READ and token in "\\&%$#_{}~^"]
    assert not bare, f"special characters reach LaTeX: {bare}"
    assert not re.search("--|,,", text), "a ligature would replace what was written"
    return "".join(READ.get(token, token) for token in tokens)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    width = draw(st.integers(1, 4))
    return Table(
        caption=draw(TEXTS | TRAPS),
        columns=[
            Column(draw(TEXTS | TRAPS), draw(FORMATS), about=draw(TEXTS)) for _ in range(width)
        ],
        rows=draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=4)),
        strong=draw(st.frozensets(st.integers(0, 3))),
    )


@given(tables())
def test_html_shows_every_cell_and_nothing_of_it_as_markup(table: Table) -> None:
    page = Page(table.to_html())
    assert page.texts["caption"] == [table.caption]
    heads, firsts = page.texts["th"][: len(table.columns)], page.texts["th"][len(table.columns) :]
    assert heads == [column.name for column in table.columns]
    rows = table.formatted()
    assert firsts == [row[0] for row in rows]
    assert page.texts["td"] == [cell for row in rows for cell in row[1:]]
    known = {"div", "table", "caption", "span", "thead", "tbody", "tr", "th", "td", "button"}
    assert {tag for tag, _ in page.tags} <= known
    shown = [attributes.get("data-value") for tag, attributes in page.tags if tag in ("th", "td")][
        len(table.columns) :
    ]
    values = [None if isinstance(value, str) else value for row in table.rows for value in row]
    assert [None if text is None else float(text) for text in shown] == values


@given(tables())
def test_markdown_has_as_many_cells_in_every_line(table: Table) -> None:
    caption, head, rule, *body = (
        table.to_markdown().rstrip("\n").replace("\n\n", "\n", 1).split("\n")
    )
    assert caption.startswith("**")
    assert len(body) == len(table.rows)
    for line in (head, rule, *body):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == len(table.columns) + 1
    for row, line in zip(table.rows, body, strict=True):
        cells = [part.strip() for part in re.split(r"(?<!\\)(?:(?:\\\\)*)\|", line)[1:-1]]
        assert len(cells) == len(row)


@given(TEXTS | TRAPS)
def test_markdown_is_read_back_as_it_was(text: str) -> None:
    escaped = escape_markdown(text)
    assert re.sub(r"\\(.)", r"\1", escaped) == one_line(text)
    assert not re.search(r"(?<!\\)[*_`\[\]<>|~&$]", re.sub(r"\\\\", "", escaped))


@given(TEXTS | TRAPS | st.text("-,'`\"<>&%\\", max_size=8))
def test_latex_is_read_back_as_it_was(text: str) -> None:
    assert read_latex(escape_latex(text)) == one_line(text)


@given(tables())
def test_latex_rows_have_their_cells(table: Table) -> None:
    text = table.to_latex()
    assert text.startswith(r"\begin{table}[h]")
    body = text[text.index(r"\midrule") + len(r"\midrule") + 1 : text.index(r"\bottomrule")]
    lines = body.split(" \\\\\n")[:-1]
    assert len(lines) == len(table.rows)
    for line in lines:
        assert len(re.findall(r"(?<!\\)&", line)) == len(table.columns) - 1
        assert not line.startswith(("[", "*")), (
            "LaTeX would take it as an argument of the line before"
        )


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than argument 1"):
        Table(caption="", columns=[Column("a")], rows=[["1", "2"]]).formatted()


@given(tables(), st.integers(20, 90))
def test_a_terminal_shows_every_number_whole_and_breaks_no_row(table: Table, width: int) -> None:
    lines = printed(table, width)
    if any(column.show is prose for column in table.columns):
        return
    for row, texts in zip(table.rows, table.formatted(), strict=True):
        for value, cell in zip(row, texts, strict=True):
            shown = cell.replace(MINUS, "-")
            assert not isinstance(value, float) or any(shown in line for line in lines)


def test_a_table_of_items_takes_its_values_from_them() -> None:
    columns = [
        Column("name", text, lambda item: item[0]),
        Column("won", ratio, lambda item: (item[1], 4)),
    ]
    table = Table.of("Wins", columns, [("a", 1), ("b", 3)])
    assert table.formatted() == [["a", "1/4"], ["b", "3/4"]]
    assert 'data-value="3.0"' in table.to_html()


NUMBERS_SPELLED = [
    (signed, [-0.01234, 0.5, None], [f"{MINUS}0.0123", "+0.5000", NOTHING]),
    (interval, [None, (-1.0, 1.0)], ["undefined", f"[{MINUS}1.0000, +1.0000]"]),
    (p_value, [None, 0.0, 1e-4, 0.00123, 0.05], [NOTHING, "<0.0001", "0.0001", "0.0012", "0.05"]),
    (p_value, [0.0999, 0.1, 0.5], ["0.1", "0.10", "0.50"]),
    (count, [None, 1234], [NOTHING, "1,234"]),
    (bits, [None], [NOTHING]),
    (ratio, [(2, 6)], ["2/6"]),
    (side_of_zero, [None, (-1, 1), (0, 1), (-1, 0), (0.1, 1), (-1, -0.1)], [0, 0, 0, 0, 1, -1]),
    (percent, [None, 0.12345, 0.0, 1.0], [NOTHING, "12.3%", "0%", "100%"]),
    (percent2, [0.00001, 0.12345], ["0.00%", "12.35%"]),
    (text, [None, 0, "word"], [NOTHING, "0", "word"]),
]


@pytest.mark.parametrize(("show", "values", "shown"), NUMBERS_SPELLED)
def test_numbers_are_spelled_once(show: Any, values: list[Any], shown: list[Any]) -> None:
    assert [show(value) for value in values] == shown


def printed(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(table.to_terminal(width), crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


WON = Table(
    "Wins & losses",
    [
        Column("asset"),
        Column("blocks won", ratio, about="Of all"),
        Column("gain", signed),
        Column("p", p_value),
    ],
    [["EURUSD", (2, 6), -0.01, None], ["XAU_USD", (11, 12), 0.5, 0.25]],
    frozenset({1}),
)


def test_a_terminal_aligns_words_left_and_numbers_right() -> None:
    assert printed(WON, 80) == [
        "Wins & losses",
        "         blocks",
        "asset       won     gain     p",
        "EURUSD      2/6  -0.0100     -",
        "XAU_USD   11/12  +0.5000  0.25",
    ]


def test_a_terminal_fills_its_width_before_it_begins_another_part() -> None:
    assert printed(WON, 30) == printed(WON, 80)
    assert printed(WON, 29) == [
        "Wins & losses",
        "         blocks",
        "asset       won     gain",
        "EURUSD      2/6  -0.0100",
        "XAU_USD   11/12  +0.5000",
        "",
        "asset       p",
        "EURUSD      -",
        "XAU_USD  0.25",
    ]
    # Each part has a column beside the first, however narrow the screen is.
    assert [line for line in printed(WON, 8) if line.startswith("EUR")] == [
        *("EURUSD      2/6", "EURUSD   -0.0100", "EURUSD      -"),
    ]


def test_prose_is_broken_into_lines_and_its_table_into_no_parts() -> None:
    table = Table(
        "Findings",
        [Column("asset"), Column("what", prose)],
        [["EURUSD", "rows that jump far\nthe first"]],
    )
    assert printed(table, 22) == [
        "Findings",
        "asset   what",
        "EURUSD  rows that jump",
        "        far",
        "        the first",
    ]


def test_html_says_what_columns_mean_and_sorts_pairs_by_their_first_number() -> None:
    lines = WON.to_html().split("\n")
    assert lines[0].endswith("<table><caption><span>Wins &amp; losses</span></caption>")
    assert 'aria-label="Wins &amp; losses"' in lines[0]
    head = '<th scope="col" aria-sort="none"'
    assert lines[1] == (
        f'<thead><tr>{head} class="words"><button type="button">asset</button></th>'
        f'{head}><button type="button" title="Of all">blocks won</button></th>'
        f'{head}><button type="button">gain</button></th>{head}><button '
        f'type="button">p</button></th></tr></thead>'
    )
    assert lines[3] == (
        '<tr><th scope="row" class="words">EURUSD</th><td data-value="2.0">2/6</td>'
        f'<td data-value="-0.01">{MINUS}0.0100</td><td>{NOTHING}</td></tr>'
    )
    assert lines[4].startswith(
        '<tr class=strong><th scope="row" class="words">XAU_USD</th><td data-value="11.0">'
    )
    assert WON.__html__() == WON.to_html()


def test_markdown_and_latex_align_columns_and_set_strong_rows_in_bold() -> None:
    assert WON.to_markdown().split("\n") == [
        *("**Wins \\& losses**", "", "| asset | blocks won | gain | p |", "|:---|---:|---:|---:|"),
        f"| EURUSD | 2/6 | {MINUS}0.0100 | {NOTHING} |",
        "| **XAU\\_USD** | **11/12** | **+0.5000** | **0.25** |",
        "",
    ]
    assert WON.to_latex().split("\n") == [
        *(
            r"\begin{table}[h]",
            r"\centering",
            r"\caption{Wins \& losses}",
            r"\begin{tabular}{lrrr}",
            r"\toprule",
        ),
        *(
            r"asset & blocks won & gain & p \\",
            r"\midrule",
            r"{}EURUSD & 2/6 & $-$0.0100 & \textendash{} \\",
        ),
        r"{}\textbf{XAU\_USD} & \textbf{11/12} & \textbf{+0.5000} & \textbf{0.25} \\",
        *(r"\bottomrule", r"\end{tabular}", r"\end{table}", ""),
    ]
