"""A tiny trained model that lies in the repository, and the simulated market that it knows.

`PYTHONPATH=tests python -m tiny` trains it again, as a new format of checkpoints or of corpora
needs.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

import vaiom
from training.tiny_runs import TINY
from vaiom.run import Run

MODEL = Path(__file__).parent / "data" / "tiny"
SETTINGS = {"num_layers": 1, "steps": 400, "validate_every": 100, "log_every": 50}
SPLITS = vaiom.SplitConfig(
    train_end=datetime(2025, 11, 1),
    validation=(datetime(2025, 11, 15), datetime(2025, 12, 1)),
    tests=((datetime(2025, 12, 1), datetime(2025, 12, 20)),),
    seal=datetime(2025, 12, 20),
)


@dataclass(frozen=True)
class Tiny:
    """The folders of a market of two assets, its corpus and the model's run."""

    bars: Path
    corpus: Path
    run: Path


def tiny_market(folder: Path, **options: object) -> vaiom.Corpus:
    """Simulate `bars` in a folder and build their `corpus`; the last bars lie behind the seal."""
    vaiom.simulate(folder / "bars", assets=2, bars=3_000)
    return vaiom.build_corpus(folder / "bars", folder / "corpus", **options)


def set_up(folder: Path) -> Tiny:
    """The market, and a copy of the run that names its corpus."""
    tiny_market(folder, like=MODEL)
    shutil.copytree(MODEL, folder / "run")
    config = Run(folder / "run").config
    config.write_text(
        config.read_text().replace('path = "corpus"', f'path = "{folder / "corpus"}"')
    )
    return Tiny(folder / "bars", folder / "corpus", folder / "run")


def main() -> None:
    torch.set_num_threads(1)
    experiment = TINY.with_changes(**SETTINGS)
    shutil.rmtree(MODEL, ignore_errors=True)
    MODEL.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        corpus = tiny_market(Path(name), splits=SPLITS)
        run = Run(Path(name) / "run")
        vaiom.train(corpus, run.path, experiment=experiment, device="cpu")
        for file in (run.config, run.metrics, run.best):
            shutil.copyfile(file, MODEL / file.name)
        config = MODEL / run.config.name
        config.write_text(config.read_text().replace(f"{name}/corpus", "corpus"))


if __name__ == "__main__":
    main()
