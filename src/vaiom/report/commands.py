"""The command lines that lead from the corpus to the report, as they would have to be typed.

Enters: the contents of a run. Leaves: commands; what the run changed about its named experiment is among their options.
"""

from __future__ import annotations

import shlex
from typing import Any

from vaiom.baselines.registry import BASELINES
from vaiom.evaluation.events_file import MODEL
from vaiom.events.splits import SEALED
from vaiom.experiments.registry import EXPERIMENTS
from vaiom.report.contents import RunContents, Split

FOLDER = "baselines"
_FITTED_BY_EVALUATE = {"frequency", "markov"}


def commands(contents: RunContents) -> list[str]:
    """One line each: train, then baselines and evaluate for every split, then report."""
    corpus = str(contents.corpus.path) if contents.corpus else "CORPUS"
    run, context = str(contents.run), contents.checkpoint.model.config.context
    out = [["vaiom", "train", corpus, *_experiment(contents), "--out", run]]
    for split in contents.splits:
        rivals = _rivals(split)
        stored = set(rivals) - _FITTED_BY_EVALUATE
        if stored:
            where = ["--out", FOLDER, "--only", ",".join(rivals), "--context", str(context)]
            out.append(["vaiom", "baselines", corpus, *where, "--split", split.name])
        unseal = ["--unseal", SEALED] if split.name == SEALED else []
        beside = ["--baselines", FOLDER] if stored else []
        out.append(["vaiom", "evaluate", run, "--corpus", corpus, "--split", split.name, *unseal, *beside])
    return [shlex.join(words) for words in (*out, ["vaiom", "report", run, "--corpus", corpus])]


def _rivals(split: Split) -> list[str]:
    """Baselines that `vaiom baselines` knows; losses that somebody stored under another name cannot be repeated so."""
    return [name for name in split.evaluation.bits if name != MODEL and name in BASELINES]


def _experiment(contents: RunContents) -> list[str]:
    """The experiment by name, its seed, and each setting in which the run differs from it."""
    origin = contents.checkpoint.provenance
    out = ["--experiment", origin.experiment, "--seed", str(origin.seed)]
    named = EXPERIMENTS.get(origin.experiment)
    if named is None:
        return out
    own = {**contents.checkpoint.model.config.to_json(), **origin.train}
    plain = {**named.model.to_json(), **named.train.to_json()}
    for key, value in own.items():
        if key != "seed" and plain.get(key) != value:
            out += ["--set", f"{key}={_spelled(value)}"]
    return out


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
