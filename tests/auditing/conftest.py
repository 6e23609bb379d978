"""Markets for the leaky pipelines, and tiny runs; made once."""

from __future__ import annotations

from auditing.finished_runs import finished, little_drawing, place, reported, spoiled
from verification.leaks.conftest import real, simulated

__all__ = ["finished", "little_drawing", "place", "real", "reported", "simulated", "spoiled"]
