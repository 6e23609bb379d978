"""What no table shows: where the names of lines stand, and what points are compared with."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from vaiom.evaluation.calibration import Reliability
from vaiom.report.figures import ACCENT, INK, _label_ends, _reliability


class Axis:
    """Keeps what is written beside it."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[float, str]] = {}

    def get_ylim(self) -> tuple[float, float]:
        return -50.0, 50.0

    def annotate(self, label: str, place: tuple[float, float], *, color: str, **how: Any) -> None:
        assert place[0] > 1
        self.written[label] = place[1], color


def test_names_stand_at_the_ends_of_their_lines_and_apart_from_each_other() -> None:
    axis = Axis()
    _label_ends(axis, {"markov": 3.0, "frequency": 1.0, "trees": -20.0, "garch": 2.0}, "garch")
    room = 6.2  # of a hundred
    assert axis.written == {
        "trees \N{MINUS SIGN}20": (-20.0, INK),
        "frequency +1": (1.0, INK),
        "garch +2": (1.0 + room, ACCENT),
        "markov +3": (1.0 + room + room, INK),
    }


def test_reliability_is_drawn_beside_the_diagonal() -> None:
    axis = Figure().subplots()
    bins = [(0.1, 0.2, 50), (0.5, 0.3, 50)]
    _reliability(axis, [Reliability(outcome="up", predicted=0.25, observed=0.25, error=0.1, bins=bins)], "buckets")
    diagonal, points = (line.get_xydata().tolist() for line in axis.get_lines())
    assert diagonal == [[0, 0], [0.525, 0.525]]
    assert points == [[0.1, 0.2], [0.5, 0.3]]
