"""Matplotlib figures as inline SVG with the colours and fonts of the page, so that one drawing is light and dark.

Enters: a figure drawn in the placeholder colours below, and what it shows in words. Leaves: an `<svg>` element with a
title for those who cannot see it; the same figure always gives the same bytes, and no address of any kind is in them.
"""

from __future__ import annotations

import functools
import html
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

# Colours that nothing else uses: each becomes the page's variable of that name.
INK, MUTED, RULE, ACCENT, GOOD, BAD, PAPER = (f"#01020{number}" for number in range(1, 8))
_VARIABLES = {INK: "ink", MUTED: "muted", RULE: "rule", ACCENT: "accent", GOOD: "good", BAD: "bad", PAPER: "paper"}
_SALT = "vaiom"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": _SALT,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "date.converter": "concise",
    "lines.solid_capstyle": "butt",
}


def in_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Run a function that draws with the report's style, whatever the user's own settings are."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        with mpl.rc_context(mpl.rcParamsDefault), mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


def drawing(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """An empty figure of that many inches, and its axes; no window, no global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**subplots)


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an element; `name` keeps its parts apart from those of other figures on the page."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = stream.getvalue()
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None
    inside = body[body.index(">", body.index("<svg")) + 1 :]
    inside = re.sub(r"<metadata>.*?</metadata>", "", inside, flags=re.DOTALL)
    inside = inside.replace("xlink:href", "href").replace('href="#', f'href="#{name}-')
    inside = inside.replace("url(#", f"url(#{name}-").replace('id="', f'id="{name}-')
    inside = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", inside)
    inside = re.sub(r"font-family:[^;\"]*;?", "", inside)
    for colour, variable in _VARIABLES.items():
        inside = inside.replace(colour, f"var(--{variable})")
    words = html.escape(alt)
    width = float(box[1].split()[2])
    return (
        f'<svg id="{name}" viewBox="{box[1]}" style="--natural:{width:.0f}px" role="img" aria-label="{words}">'
        f"<title>{words}</title>{inside.rstrip()}"
    )
