"""Packaged models: small folders that every command takes by name.

Enters: a run folder with a selected checkpoint. Leaves: a folder with its weights and, where the
run has them, its heads for longer horizons, the dependence between its assets and its evaluations.
`about.json` beside them says where the bars came from and holds the SHA-256 of every other file.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vaiom.codec import decode, override, to_json
from vaiom.corpus.manifest import read_manifest
from vaiom.distribution.dependence import Dependence
from vaiom.errors import ConfigError, UserError
from vaiom.evaluation.record import Evaluation
from vaiom.files import read_json, sha256_file, staged_folder, write_bytes, write_json
from vaiom.model.checkpoint import load_checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import MODELS, Run, find_run

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a model's bars came from and what its training cost, as far as that is known."""

    clock: str = ""
    """Time zone of the bars, and which end of a bar its time is."""
    source: str = ""
    cost: str = ""
    """Time of training, and the device."""
    bars: dict[str, tuple[str, str]]
    """Times of the first and the last bar of each asset, as in the corpus."""
    files: dict[str, str]
    """SHA-256 of the other files of a packaged model, by name."""


def read_origin(run: Path) -> Origin:
    """The origin of a run's model: that of its package, or what its log and its corpus say."""
    files = Run(run)
    if files.about.is_file():
        value = read_json(files.about)
        return decode(Origin, value, "not the origin of a packaged model", where=files.about)
    metrics = files.read_metrics()
    cost = f"{metrics[-1]['seconds']:,.0f} s, teachers and compilation apart" if metrics else ""
    bars: dict[str, tuple[str, str]] = {}
    with suppress(UserError):  # a model file alone, or a corpus that has moved
        for symbol, asset in read_manifest(files.corpus_path())["series"].items():
            bars[symbol] = (asset["first"], asset["last"])
    return Origin(cost=cost, bars=bars, files={})


def package(
    run: Path,
    name: str,
    out: Path = MODELS,
    *,
    clock: str | None = None,
    source: str | None = None,
    cost: str | None = None,
) -> Path:
    """Make a packaged model of a run, or of another packaged model; returns its folder.

    Args:
        run: Run folder, or the name of a packaged model.
        name: Name of the new model, and of its folder in `out`.
        out: Folder for the model; those in the default one are listed by `vaiom models`.
        clock: What the card says of the time of the bars, in place of what is known.
        source: What it says of their source.
        cost: What it says of the cost of training.

    Everything is checked against the checkpoint first, and the package is whole or absent.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            "not a name for a model", expected="letters, digits, dots and dashes", got=repr(name)
        )
    folder = out / name
    if folder.exists():
        raise ConfigError("the model exists already", where=folder, fix="choose another name")
    files = Run(find_run(run))
    checkpoint = load_checkpoint(files.best)
    parts = [files.best]
    if files.horizons.is_file():
        load_horizons(files.horizons, checkpoint)
        parts.append(files.horizons)
    if files.dependence.is_file():
        Dependence.read(files.dependence, checkpoint.sha256)
        parts.append(files.dependence)
    evaluations = [
        Evaluation.read(files.path, split, checkpoint.sha256) for split in files.evaluated_splits()
    ]
    given = {"clock": clock, "source": source, "cost": cost}
    said = {key: text for key, text in given.items() if text is not None}
    origin = override(read_origin(files.path), said)
    with staged_folder(folder) as staged:
        for part in parts:
            write_bytes(staged / part.name, part.read_bytes())
        for evaluation in evaluations:
            # Paths of the machine that evaluated it say nothing to others.
            own = replace(evaluation, run=name, corpus=Path(evaluation.corpus).name)
            write_json(Run(staged).evaluation(own.split), to_json(own))
        hashes = {file.name: sha256_file(file) for file in sorted(staged.iterdir())}
        write_json(Run(staged).about, to_json(replace(origin, files=hashes)))
    return folder
