"""Determinism: a run's configuration trained twice gives the same parameters.

Enters: a run folder and its corpus. Leaves: a `Proof`. On a CPU both trainings must give the same bytes; a GPU adds in
an order of its own, so there the difference is measured and held against a tolerance.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from vaiom.audit.pipeline import seen_by
from vaiom.audit.proof import Claim, Proof, proving
from vaiom.events.corpus import Corpus
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import BEST_NAME, Run
from vaiom.training.devices import resolve_device
from vaiom.training.experiment import Experiment, experiment_of_run
from vaiom.training.loop import train

REPEAT = Claim("repeat", "the run's configuration trained twice with one seed: the same parameters")
FIRST_STEPS = 20
GPU_TOLERANCE = 1e-2
"""Largest difference of one parameter after the first steps on a GPU."""


@dataclass(frozen=True, kw_only=True)
class _Trained:
    sha256: str
    tensors: dict[str, torch.Tensor]
    bits: float


def prove_repeat(run: Path, corpus: Corpus, *, full: bool = False, device: str = "cpu") -> Proof:
    experiment = experiment_of_run(run)
    own = load_checkpoint(Run(run).best)
    seen = seen_by(own, corpus)
    if not full:
        steps = min(FIRST_STEPS, experiment.train.steps)
        experiment = experiment.with_changes(steps=steps, validate_every=steps)
    on_cpu = resolve_device(device).type == "cpu"
    with proving(REPEAT) as proof:
        first, second = (_train(seen, experiment, device) for _ in range(2))
        largest = max(
            float((first.tensors[name].double() - second.tensors[name].double()).abs().max()) for name in first.tensors
        )
        said = f"{first.sha256[:16]} and {second.sha256[:16]}, largest difference of a parameter {largest:.1e}"
        holds = first.sha256 == second.sha256 if on_cpu else largest <= GPU_TOLERANCE
        proof.check(holds, f"two trainings of {experiment.train.steps} steps differ: {said}", len(first.tensors))
        proof.notes.append(
            f"{experiment.train.steps} steps: {said}; Validation {first.bits!r} and {second.bits!r} bits"
        )
        if full and on_cpu:
            same = own.sha256 == first.sha256
            proof.notes.append(f"the run's own {BEST_NAME} {'is the same' if same else 'is another'}")
    return proof


def _train(corpus: Corpus, experiment: Experiment, device: str) -> _Trained:
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        result = train(corpus, experiment, run, device=device)
        best = load_checkpoint(Run(run).best)
        return _Trained(sha256=best.sha256, tensors=dict(best.model.state_dict()), bits=result.best_bits)
