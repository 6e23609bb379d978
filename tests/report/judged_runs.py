"""What the tests of this folder share: runs of a tiny model that were trained and evaluated, not
made up.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from vaiom.baselines.base import Baseline, baseline
from vaiom.baselines.lightgbm import LightGBM, TreeConfig
from vaiom.evaluation.record import Evaluation
from vaiom.files import Progress

BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t", "lightgbm")
CONTEXT = 16
TREES = TreeConfig(rounds=2, num_leaves=4, min_child_samples=100)


def few_trees(name: str, progress: Progress | None) -> Baseline:
    return LightGBM(name, TREES, progress) if name == "lightgbm" else baseline(name, progress)


@dataclass(frozen=True, eq=False)
class Judged:
    """A run, its corpus, and what `evaluate_run` gave for each split."""

    corpus: Path
    run: Path
    evaluations: dict[str, Evaluation]

    def copy_to(self, folder: Path) -> Judged:
        """The same in a place of one's own; the run then looks for its corpus where it was."""
        shutil.copytree(self.corpus, folder / "corpus")
        shutil.copytree(self.run, folder / "run")
        return Judged(folder / "corpus", folder / "run", self.evaluations)


class Page(HTMLParser):
    """The parts of a report that tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {
            "h2": [],
            "caption": [],
            "title": [],
            "th": [],
            "td": [],
        }
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in reversed(self._open):
            if tag in self.texts:
                self.texts[tag][-1] += data
                return

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]
