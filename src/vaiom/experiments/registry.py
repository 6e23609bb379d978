"""The named experiments, each a few lines over its parent.

Paper: Appendix A, "Full Experimental Configuration".
"""

from __future__ import annotations

from dataclasses import replace

from vaiom.errors import ConfigError
from vaiom.model.config import RUNGS
from vaiom.training.experiment import Experiment

_MAIN = Experiment(name="main", about="The paper's selected model: 0.9M HybridContIn, MoMS, all auxiliaries, FullSeq.")
_DEMO = Experiment(
    name="demo", about="A small model that learns the simulated market on a CPU in minutes."
).with_changes(
    num_layers=2,
    num_heads=2,
    width=64,
    context=64,
    dropout=0.0,
    num_micro_batches=3,
    learning_rate=2e-3,
    steps=1_200,
    validate_every=100,
)

_LARGER = [
    replace(_MAIN, name=f"main-{rung.lower()}", about=f"The main model at the paper's {rung} rung.").with_changes(
        **shape
    )
    for rung, shape in RUNGS.items()
    if rung != "0.9M"
]

EXPERIMENTS = {experiment.name: experiment for experiment in (_MAIN, *_LARGER, _DEMO)}


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError("unknown experiment", expected=", ".join(EXPERIMENTS), got=name)
    return EXPERIMENTS[name]
