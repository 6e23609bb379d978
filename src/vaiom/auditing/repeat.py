"""The proof that a training can be repeated: the same settings and seed give the same parameters.

A run and its corpus enter, a proof leaves. On a CPU the two trainings must agree to the bit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from vaiom.auditing.proof import Proof, claim
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import seen_by
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import BEST_NAME, Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import experiment_of_run
from vaiom.training.loop import train

FIRST_STEPS = 20
"""Steps of a training that is not repeated in full."""
GPU_TOLERANCE = 1e-2
"""Largest difference of one parameter after the first steps on a GPU."""


@claim("repeat", "the run's configuration trained twice with one seed: the same parameters")
def prove_repeat(
    proof: Proof, run: Path, corpus: Corpus, *, full: bool = False, device: str = "cpu"
) -> None:
    """Train twice, and compare the parameters; in full, with those of the run itself too."""
    own = load_checkpoint(Run(run).best)
    seen = seen_by(own, corpus)
    experiment = experiment_of_run(run)
    if not full:
        steps = min(FIRST_STEPS, experiment.train.steps)
        experiment = experiment.with_changes(steps=steps, validate_every=steps)
    start = Run(run).start if own.provenance.start_sha256 else None
    checkpoints = []
    bits = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            result = train(seen, experiment, Path(name) / "run", device=device, start=start)
            checkpoints.append(load_checkpoint(Run(result.run).best))
            bits.append(repr(result.best_bits))
    first, second = checkpoints
    differences = _differences(first, second)
    on_cpu = resolve_device(device).type == "cpu"
    same = first.sha256 == second.sha256 if on_cpu else max(differences) <= GPU_TOLERANCE
    hashes = f"{first.sha256[:16]} and {second.sha256[:16]}"
    found = f"{hashes}, largest difference of a parameter {max(differences):.1e}"
    steps = experiment.train.steps
    proof.check(same, f"two trainings of {steps} steps differ: {found}", len(differences))
    proof.note(f"{steps} steps: {found}; Validation {' and '.join(bits)} bits")
    if full and on_cpu:
        problem = (
            f"the run's own {BEST_NAME} is another: it was not trained so, or not with "
            f"these threads"
        )
        if proof.check(own.sha256 == first.sha256, problem):
            proof.note(f"the run's own {BEST_NAME} is the same")


def _differences(one: Checkpoint, other: Checkpoint) -> list[float]:
    """The largest difference in each tensor of two checkpoints."""
    theirs = other.model.state_dict()
    differences = []
    for name, tensor in one.model.state_dict().items():
        difference = tensor.double() - theirs[name].double()
        differences.append(float(difference.abs().max()))
    return differences
