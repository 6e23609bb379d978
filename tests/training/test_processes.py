"""Real processes: a run killed at any moment, two processes that train as one, training where
libraries are missing.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_runs import CHANGES, assert_same_tensors, metrics_of, state_of

from vaiom.corpus.store import Corpus
from vaiom.experiments.registry import experiment
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train

VAIOM = [sys.executable, "-c", "from vaiom.cli.main import main; main()"]


def environment() -> dict[str, str]:
    """One thread as in this process, and only the loopback device."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def settings_of(changes: dict[str, object]) -> list[str]:
    return [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]


def command(corpus: Corpus, run: Path, changes: dict[str, object], *more: str) -> list[str]:
    arguments = [
        "train",
        str(corpus.path),
        "--experiment",
        "demo",
        "--out",
        str(run),
        "--device",
        "cpu",
    ]
    return [*arguments, *settings_of(changes), *more]


def tiny_demo(changes: dict[str, object]) -> Experiment:
    return experiment("demo").with_changes(**changes)


def finish(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.kills
def test_a_run_killed_at_any_moment_resumes_to_the_bit(corpus: Corpus, tmp_path: Path) -> None:
    changes = CHANGES | {"steps": 96, "validate_every": 8, "log_every": 4}
    whole = train(corpus, tiny_demo(changes), tmp_path / "whole", device="cpu")
    folder = tmp_path / "killed"
    arguments = [*VAIOM, *command(corpus, tmp_path / "killed", changes, "--resume")]
    chance = random.Random(time.time_ns())
    for _ in range(2):
        before = Run(folder).saved_steps()[-1] if Run(folder).saved_steps() else 0
        process = subprocess.Popen(
            arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment()
        )
        while (Run(folder).saved_steps() or [0])[-1] == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    killed_at = Run(folder).saved_steps()[-1]
    finish(arguments)
    assert metrics_of(folder) == metrics_of(whole.run), f"killed after {killed_at}"
    assert_same_tensors(state_of(folder, 96), state_of(whole.run, 96))
    ours, theirs = (load_checkpoint(path / "best.safetensors") for path in (folder, whole.run))
    assert (ours.sha256, ours.provenance.step) == (theirs.sha256, theirs.provenance.step)
    assert not [path for path in folder.glob("*") if path.is_dir() and path.name != "checkpoints"]


TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--master-addr",
    "127.0.0.1",
]


def free_port() -> str:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_two_processes_train_the_same_model_as_one(corpus: Corpus, tmp_path: Path) -> None:
    changes = CHANGES | {"dropout": 0.0, "steps": 8}
    alone = train(corpus, tiny_demo(changes), tmp_path / "alone", device="cpu")
    launcher = tmp_path / "vaiom"
    launcher.write_text(f"#!{sys.executable}\nfrom vaiom.cli.main import main\nmain()\n")
    launcher.chmod(0o755)
    together = tmp_path / "together"
    shared = [*TORCHRUN, "--master-port", free_port(), "--no-python", str(launcher)]
    # Resuming from the middle is part of it: both processes read what one wrote.
    finish([*shared, *command(corpus, together, changes | {"steps": 4})])
    done = finish([*shared, *command(corpus, together, changes, "--resume", "--json")])
    assert done.stdout.count('"best_step"') == 1  # one of them speaks
    for ours, theirs in zip(metrics_of(together), metrics_of(alone.run), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    ours = state_of(together, 8)
    theirs = state_of(alone.run, 8)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if (
            "query_key_value.bias" not in name
        ):  # keys shift all scores alike: their gradient is rounding alone
            torch.testing.assert_close(ours[name], values, atol=2e-5, rtol=1e-3, msg=name)


MISSING = (
    "polars",
    "pyarrow",
    "pandas",
    "lightgbm",
    "pydantic",
    "fastapi",
    "arch",
    "matplotlib",
    "scipy",
)


def test_training_and_evaluation_need_numpy_torch_and_safetensors_alone(
    corpus: Corpus, tmp_path: Path
) -> None:
    code = f"""
import sys
for name in {MISSING}:
    sys.modules[name] = None
import numpy as np, torch
from pathlib import Path
from vaiom.baselines.counts import Frequency, Markov
from vaiom.evaluation.calibration import kuiper_test
from vaiom.evaluation.scores import served_distributions
from vaiom.evaluation.inference import asset_months, standard_error
from vaiom.evaluation.scores import event_bits
from vaiom.simulation.oracle import Oracle
from vaiom.corpus.store import open_corpus
from vaiom.experiments.registry import experiment
from vaiom.model.checkpoint import load_checkpoint
from vaiom.training.loop import train
from vaiom.training.windows import DeviceCorpus, Scorer

corpus = open_corpus({str(corpus.path)!r})
chosen = experiment("demo").with_changes(**{CHANGES | {"steps": 4}!r})
result = train(corpus, chosen, Path({str(tmp_path / "run")!r}), device="cpu")
model = load_checkpoint(result.run / "best.safetensors").model
rows, cpu = corpus.endpoints("validation", 16), torch.device("cpu")
scorer = Scorer(model, DeviceCorpus(corpus, model.config, cpu), torch.float32)
probs = scorer.predict(rows).double().exp().numpy()
ours = event_bits(probs, corpus.target_return[rows])
assert abs(ours.mean() - result.best_bits) < 1e-4
for baseline in (Frequency(), Markov()):
    theirs = baseline.fit(corpus, corpus.endpoints("train", 16)).predict_proba(corpus, rows)
    gains = event_bits(theirs, corpus.target_return[rows]) - ours
    standard_error(gains, asset_months(corpus.meta[rows, 0], corpus.target_timestamps[rows]))
kuiper_test(served_distributions(corpus, rows, probs).cdf(corpus.log_ret_next[rows]))
"""
    finish([sys.executable, "-c", code])
    # The command line itself brings pydantic: Typer stands on it.
    missing = [name for name in MISSING if name != "pydantic"]
    commands = (
        f"import sys\nfor name in {missing}: sys.modules[name] = None\nfrom vaiom.cli.main "
        f"import main\nmain()"
    )
    arguments = command(corpus, tmp_path / "other", CHANGES | {"steps": 2})
    finish([sys.executable, "-c", commands, *arguments])
