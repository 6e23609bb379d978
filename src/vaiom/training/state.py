"""What a run begins with, trained weights or none, and what it needs to go on after it was killed. No pickle.

Random states are not kept: they start anew wherever a state is saved, from the seed, the process and the step.
On a CPU the resumed run repeats the uninterrupted one to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vaiom.codec import from_json, to_json
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.corpus import Corpus
from vaiom.events.fit import Tokenizer
from vaiom.events.splits import SplitConfig
from vaiom.model.checkpoint import Checkpoint, read_tensors, write_tensors
from vaiom.model.vaiom import ASSET_TABLE, CLASS_TABLE, Vaiom
from vaiom.training.experiment import Experiment
from vaiom.training.step import TrainStep

FORMAT = "vaiom-training-state"
FORMAT_VERSION = 1
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
# What must not change under a run, the most telling first.
_ORIGINS = {"config_sha256": "configuration", "tokenizer_sha256": "tokenizer", "corpus_sha256": "corpus"}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """How far a run is, what was best so far, and what it was started with."""

    step: int = 0
    best_step: int = 0
    best_bits: float | None = None
    last_bits: float | None = None
    stale_validations: int = 0
    seconds: float = 0.0
    config_sha256: str
    tokenizer_sha256: str
    corpus_sha256: str


def save_state(path: Path, step: TrainStep, record: RunRecord) -> None:
    tensors = {f"model/{name}": value for name, value in step.model.state_dict().items()}
    if step.ema_model is not step.model:
        tensors |= {f"averaged/{name}": value for name, value in step.ema_model.state_dict().items()}
    for name, parameter in step.model.named_parameters():
        for key in _MOMENTS:
            tensors[f"optimizer/{key}/{name}"] = step.optimizer.state[parameter][key]
    # Memory of its own for each: safetensors refuses tensors that share any.
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    contents = {"record": to_json(record), "scaler": step.scaler.state_dict()}
    write_tensors(path, FORMAT, FORMAT_VERSION, contents, tensors)


def load_state(path: Path, step: TrainStep, ours: RunRecord) -> RunRecord:
    """Restore model, optimizer and scaler in place, if the run was started with what we have."""
    header, tensors = read_tensors(path, FORMAT, FORMAT_VERSION)
    try:
        record = from_json(RunRecord, header["record"])
        for field, name in _ORIGINS.items():
            if getattr(record, field) != getattr(ours, field):
                raise ConfigError(
                    f"the run was started with another {name}",
                    where=path.parents[1],
                    expected=getattr(record, field),
                    got=getattr(ours, field),
                    fix="resume with what the run was started with (its config.toml says it), or start a new run",
                )
        step.model.load_state_dict({name: tensors[f"model/{name}"] for name in step.model.state_dict()})
        if step.ema_model is not step.model:
            step.ema_model.load_state_dict({name: tensors[f"averaged/{name}"] for name in step.model.state_dict()})
        for name, parameter in step.model.named_parameters():
            state = {key: tensors[f"optimizer/{key}/{name}"] for key in _MOMENTS}
            step.optimizer.state[parameter] = {key: value.to(step.device) for key, value in state.items()}
        if header["scaler"]:
            step.scaler.load_state_dict(header["scaler"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            "the training state does not fit this run",
            where=path,
            got=str(error).splitlines()[0],
            fix="resume with the configuration and device type the run was started with, or start a new run",
        ) from error
    return record


def require_start(start: Checkpoint, corpus: Corpus, experiment: Experiment) -> None:
    """Refuse weights of another network or of other buckets, and weights that have learned what is held out."""
    if start.config != experiment.model:
        fix = "leave the settings of the model as they are"
        raise ConfigError("the weights are of another network than the experiment", fix=fix)
    if not corpus.tokenizer.has_buckets_of(start.tokenizer):
        raise CheckpointError(
            "the weights were trained with other buckets than the corpus has",
            where=corpus.path,
            fix="vaiom corpus build BARS_DIR --like the model, the same that --from names",
        )
    splits = SplitConfig.from_json(start.provenance.splits), corpus.splits
    known, own = ((each.train_end, each.validation[1]) for each in splits)
    if any(ours < theirs for ours, theirs in zip(own, known, strict=True)):
        raise DataError(
            "the weights have learned from, or were selected on, what this corpus holds out",
            where=corpus.path,
            expected="Train and Validation that end at {:%Y-%m-%d} and {:%Y-%m-%d} or later".format(*known),
            got="{:%Y-%m-%d} and {:%Y-%m-%d}".format(*own),
            fix="build the corpus with later boundaries, or begin with older weights (vaiom models lists some)",
        )


def load_weights(model: Vaiom, start: Checkpoint, tokenizer: Tokenizer) -> None:
    """Give a model of a corpus's tokenizer the weights of another; an asset that is new to them begins as unknown."""
    tensors, known = start.model.state_dict(), start.tokenizer
    rows = {
        ASSET_TABLE: [known.asset_id(symbol) for symbol in ("", *tokenizer.symbols)],
        # A new class begins as the one that its assets were read as.
        CLASS_TABLE: [
            known.class_names.index(name) if name in known.class_names else 0 for name in tokenizer.class_names
        ],
    }
    model.load_state_dict({name: each[rows[name]] if name in rows else each for name, each in tensors.items()})


def seed_dropout(seed: int, rank: int, step: int) -> None:
    """Start the random numbers of what follows a saved state; they differ between the processes of a group."""
    torch.manual_seed(int(np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)[0]))
