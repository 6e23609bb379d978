"""How figures are drawn: the report's style and colours, and inline SVG with a description.

A matplotlib figure enters, an SVG element leaves; the same numbers give the same bytes. Colours
become variables of the page, so that it can be dark or light.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vaiom.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010201"
MUTED = "#010202"
RULE = "#010203"
ACCENT = "#010204"
GOOD = "#010205"
BAD = "#010206"
PAPER = "#010207"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    ACCENT: "accent",
    GOOD: "good",
    BAD: "bad",
    PAPER: "paper",
}
"""Colours that nothing else uses: each becomes the page's variable of that name."""
COLOUR_OF_SIDE = {1: GOOD, 0: MUTED, -1: BAD}
"""By the side of zero on which an interval lies."""

WIDTH = 8.4
"""Inches of every figure."""
LONG_NAME = 8
"""Longer names are broken over two lines."""
FAINTEST_TINT = 0.08
"""Opacity of a cell whose gain is zero."""
TINT_RANGE = 0.62
"""How much more opaque the cell with the largest gain is."""
LABEL_ROOM = 0.062
"""Share of an axis that the label of a line needs."""

whole = number("+,.0f")
"""A signed whole number."""
SAVED_WITHOUT: dict[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""Metadata that would make two drawings of the same numbers differ."""


@contextmanager
def in_style() -> Iterator[None]:
    """Draw with the report's style, whatever the user's own settings are."""
    import matplotlib as mpl

    asset = files("vaiom.report") / "assets" / "report.mplstyle"
    with as_file(asset) as style, mpl.rc_context(mpl.rcParamsDefault), mpl.rc_context(fname=style):
        yield


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with a name of its own on the page, and a description in words."""

    name: str
    alt: str
    figure: Figure

    @in_style()
    def to_svg(self) -> str:
        """The figure as an SVG element, its ids kept apart from those of other figures."""
        stream = io.StringIO()
        self.figure.savefig(stream, format="svg", metadata=SAVED_WITHOUT)
        text = stream.getvalue()
        opening = re.search(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', text)
        assert opening is not None
        body = re.sub(r"<metadata>.*?</metadata>", "", text[opening.end() :], flags=re.DOTALL)
        body = body.replace("xlink:href", "href")
        for reference in ('href="#', "url(#", 'id="'):
            body = body.replace(reference, f"{reference}{self.name}-")
        body = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", body)
        body = re.sub(r"font-family:[^;\"]*;?", "", body)
        for colour, variable in VARIABLES.items():
            body = body.replace(colour, f"var(--{variable})")
        box = opening[1]
        natural = float(box.split()[2])
        words = html.escape(self.alt)
        return (
            f'<svg id="{self.name}" viewBox="{box}" style="--natural:{natural:.0f}px" role="img" '
            f'aria-label="{words}"><title>{words}</title>{body.rstrip()}'
        )

    def __html__(self) -> str:
        return self.to_svg()


def new_figure(height: float, **subplots: Any) -> tuple[Figure, Any]:
    """An empty figure of this height in inches, and its axes; no window, no global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(**subplots)


def label_rows(axis: Axes, names: Sequence[str]) -> None:
    """Write names at whole heights, the first one on top, as rows of a table would be."""
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_yticks(range(len(names)), names)


def draw_cells(
    axis: Axes, values: npt.NDArray[np.float64], columns: Sequence[str], limit: float, turned: int
) -> None:
    """Draw a heat map of gains (rows, columns) in bits: tinted cells with thousandths of a bit.

    The tint grows up to a gain of `limit`; cells that are not a number stay empty. Names of columns
    are turned by so many degrees.
    """
    from matplotlib.patches import Rectangle

    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        colour = GOOD if value > 0 else BAD
        strength = FAINTEST_TINT + TINT_RANGE * min(abs(value) / limit, 1.0)
        corner = (column - 0.5, row - 0.5)
        axis.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="none", alpha=strength))
        axis.text(column, row, whole(1000 * value), ha="center", va="center", fontsize=8)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_xticks(range(len(columns)), columns, fontsize=8, rotation=turned)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def label_ends(axis: Axes, ends: Mapping[str, float], best: str) -> None:
    """Write names beside the ends of their lines, pushed apart where they would overlap."""
    low, high = axis.get_ylim()
    room = (high - low) * LABEL_ROOM
    free = -np.inf
    for name, value in sorted(ends.items(), key=lambda item: item[1]):
        height = max(value, free)
        axis.annotate(
            f"{name} {whole(value)}",
            (1.01, height),
            xycoords=("axes fraction", "data"),
            annotation_clip=False,
            va="center",
            fontsize=8,
            color=ACCENT if name == best else INK,
        )
        free = height + room


def fold_name(name: str) -> str:
    """A long name on two lines, broken after the underscore nearest to its middle."""
    breaks = [match.end() for match in re.finditer("_", name)]
    if len(name) <= LONG_NAME or not breaks:
        return name
    middle = min(breaks, key=lambda place: abs(2 * place - len(name)))
    return f"{name[:middle]}\n{name[middle:]}"
