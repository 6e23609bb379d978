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
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

# Colours that nothing else uses: each becomes the page's variable of that name.
INK, MUTED, RULE, ACCENT, GOOD, BAD, PAPER = (f"#01020{number}" for number in range(1, 8))
_VARIABLES = {INK: "ink", MUTED: "muted", RULE: "rule", ACCENT: "accent", GOOD: "good", BAD: "bad", PAPER: "paper"}
_STYLE = files("vaiom.report") / "assets" / "report.mplstyle"


def in_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Run a function that draws with the report's style, whatever the user's own settings are."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        with as_file(_STYLE) as style, mpl.rc_context(mpl.rcParamsDefault), mpl.rc_context(fname=style):
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
