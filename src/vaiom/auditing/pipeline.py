"""What the proofs examine: the pipeline from bars to forecasts, a run, and how far rounding may
move its losses.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from vaiom.auditing.proof import QUICK_BASELINES, AuditConfig
from vaiom.baselines.base import BASELINES, FOR_GPUS, Baseline, Floats, Predictor, Rows, baseline
from vaiom.baselines.store import find_fit
from vaiom.corpus.splits import TRAIN, VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.evaluation.predictor import ModelPredictor, seen_by
from vaiom.evaluation.scores import class_ids
from vaiom.features.fields import CONT_FIELDS, EXTRA_FIELDS
from vaiom.files import read_json, sha256_of
from vaiom.model.config import ModelConfig
from vaiom.model.horizon_heads import HorizonHeads
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run
from vaiom.training.experiment import TrainConfig
from vaiom.training.windows import DeviceCorpus, Sampler, Scorer, train_sampler

if TYPE_CHECKING:
    import polars as pl

    from vaiom.corpus.build import CorpusConfig

Array = npt.NDArray[Any]
Bars = Mapping[str, "pl.DataFrame"]
Heads = tuple[HorizonHeads, Corpus]

SAMPLED = (
    4_096  # events that are scored again if each needs its own window; all are if rows share a pass
)
MEASURED_WINDOWS, MEASURED_IN_STRETCHES = 64, 1_024  # events on which rounding is measured
# Another machine has other kernels: how many times the measured rounding one event, and all
# together, may be off.
EVENT_MARGIN, MEAN_MARGIN = 8, 3
UNIT = 2**-23  # relative distance of neighbouring FP32 numbers


@dataclass
class Pipeline:
    """From bars to a corpus, and to what a model is shown, learns from and answers."""

    config: CorpusConfig | None  # None without bars
    model: ModelConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    predictor: Predictor | None = None
    baselines: Sequence[str] = QUICK_BASELINES
    moved: bool = False
    """Whether the run has other split boundaries than its corpus was built with."""

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        """The corpus of these bars, with the given tokenizer or one fitted on them."""
        from vaiom.corpus.build import (
            corpus_in_memory,  # which needs a dataframe library, as bars do
        )

        assert self.config is not None
        built = corpus_in_memory(bars, self.config, tokenizer=tokenizer)
        if not self.moved:
            return built
        manifest = {"arrays": {}, "like": self.config.like is not None}
        return replace(built, manifest=manifest).with_splits(self.config.splits, tokenizer)

    def hashes(self, corpus: Corpus) -> dict[str, str]:
        """SHA-256 of what Train fits: the tokenizer, and everything that each baseline stores."""
        train, hashes = (
            corpus.endpoints(TRAIN, self.model.history),
            {"tokenizer": corpus.tokenizer.sha256},
        )
        for name in self.baselines:
            with tempfile.TemporaryDirectory() as folder:
                baseline(name).fit(corpus, train).save(Path(folder))
                files = sorted(file for file in Path(folder).rglob("*") if file.is_file())
                hashes[name] = sha256_of(b"".join(file.read_bytes() for file in files))
        return hashes

    def splits(self, corpus: Corpus) -> dict[str, Rows]:
        """Row numbers of the events of each split, earliest split first."""
        names = (TRAIN, VALIDATION, *corpus.splits.test_names)
        return {name: corpus.endpoints(name, self.model.history) for name in names}

    def sampler(self, corpus: Corpus) -> Sampler:
        """Draws the windows that a training step learns from."""
        return train_sampler(
            corpus, self.model.context, self.train.seed, self.train.windows_per_step
        )

    def windows(self, corpus: Corpus, rows: Rows) -> Array:
        """What a model is shown of the events of these rows, (n, context, ...)."""
        return np.asarray(
            corpus.inputs(self.model)[rows[:, None] + np.arange(1 - self.model.context, 1)]
        )


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The largest differences that rounding explains, margin included."""

    precision: str
    bits: float  # of one event
    rms_bits: float
    mean_bits: float  # small: rounding errors have no preferred sign
    probability: float

    def explains(self, bits: Floats) -> bool:
        """Whether these differences of losses (n,) can be rounding."""
        largest, rms = np.abs(bits).max(initial=0), np.sqrt(np.mean(bits**2))
        return bool(
            largest <= self.bits and rms <= self.rms_bits and abs(bits.mean()) <= self.mean_bits
        )


class AuditedRun:
    """A run with its model and the corpus under its splits; roundings and fitted baselines are
    kept.
    """

    def __init__(self, folder: Path, corpus: Corpus, config: AuditConfig) -> None:
        self.files, self.config = Run(folder), config
        self.model = ModelPredictor.load(self.files.best, "cpu")
        self.checkpoint, self.history = self.model.checkpoint, self.model.checkpoint.config.history
        self.corpus = seen_by(self.checkpoint, corpus)
        self.in_stretches = bool(self.checkpoint.config.attention_window)
        self.rounding, self.fitted = cache(self._measure), cache(self._fit)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluation files by split, as they are stored."""
        return {
            split: read_json(self.files.evaluation(split))
            for split in self.files.evaluated_splits()
        }

    def draw(self, rows: Rows, *, whole: bool = False, at_least: int = 0) -> Rows:
        """Which of the events are scored again; `whole` asks for all of them, unless the user set a
        limit.
        """
        default = len(rows) if whole or self.in_stretches else SAMPLED
        limit = max(default if self.config.rescore is None else self.config.rescore, at_least)
        if len(rows) <= limit:
            return np.arange(len(rows))
        return np.sort(
            np.random.default_rng(self.config.seed).choice(len(rows), limit, replace=False)
        )

    def _fit(self, name: str, folder: str | None) -> Baseline | None:
        """A baseline fitted again on Train, or else its stored fit, if there is one."""
        if name in self.config.baselines:
            return baseline(name).fit(self.corpus, self.corpus.endpoints(TRAIN, self.history))
        exact = name in BASELINES and name not in FOR_GPUS  # a GPU may have rounded those otherwise
        return find_fit(name, self.corpus, self.history, Path(folder)) if exact and folder else None

    def _measure(self, split: str, scored_as: str | Heads | None) -> Rounding:
        """Score a sample with parameters moved in their last digit and, unless it was scored in
        FP32, in FP16.

        Heads of a horizon, named with its corpus, read hidden states, which are FP32 on any device.
        """
        heads, precision = (
            (scored_as, "float32") if isinstance(scored_as, tuple) else (None, scored_as)
        )
        network, corpus = self.checkpoint.model, heads[1] if heads else self.corpus
        rows = corpus.endpoints(split, self.history, unseal=True)
        rng = np.random.default_rng(self.config.seed)
        if self.in_stretches:
            start = int(rng.integers(max(1, len(rows) - MEASURED_IN_STRETCHES)))
            rows = rows[start : start + MEASURED_IN_STRETCHES]
        else:
            rows = np.sort(rng.choice(rows, min(MEASURED_WINDOWS, len(rows)), replace=False))
        data = DeviceCorpus(corpus, network.config, torch.device("cpu"))
        # Each parameter moves to about its neighbour, as other orders of adding would move sums.
        moved, generator = copy.deepcopy(network), torch.Generator().manual_seed(self.config.seed)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.mul_(
                    1 + UNIT * (2 * torch.rand(parameter.shape, generator=generator) - 1)
                )
        passes = [(network, torch.float32), (moved, torch.float32)]
        passes += [] if precision == "float32" else [(network, torch.float16)]

        def answer(model: Vaiom, dtype: torch.dtype) -> Floats:
            answers = Scorer(model, data, dtype, hidden=bool(heads)).predict(rows).numpy()
            if not heads:
                return answers.astype(np.float64)
            return np.log(
                heads[0].probs(answers, corpus.inputs(model.config)[rows], heads[1].horizon)
            )

        now, *others = (answer(*each) for each in passes)
        ids = class_ids(corpus.target_return[rows], now.shape[1])[:, None]
        bits = [(now - other) / np.log(2) for other in others]
        means = [
            abs(np.take_along_axis(each, ids, 1).mean()) + each.std() / np.sqrt(len(rows))
            for each in bits
        ]
        return Rounding(
            precision=precision or "float16",
            bits=EVENT_MARGIN * max(float(np.abs(each).max()) for each in bits),
            rms_bits=MEAN_MARGIN * max(float(np.sqrt(np.mean(each**2))) for each in bits),
            mean_bits=MEAN_MARGIN * float(max(means)),
            probability=EVENT_MARGIN
            * max(float(np.abs(np.exp(now) - np.exp(other)).max()) for other in others),
        )


def widest_model(context: int, corpus: Corpus | None = None) -> ModelConfig:
    """A model that reads every continuous field that a corpus has, to audit it without a run."""
    absent = corpus.absent_columns if corpus else ()
    extra = [name for name in EXTRA_FIELDS if name not in absent]
    return ModelConfig(input="cont", fields=(*CONT_FIELDS, *extra), context=context)
