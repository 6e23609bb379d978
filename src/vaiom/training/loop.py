"""The training run: teachers if there are any, steps, Validation, checkpoints, selection,
resumption.

Enters: a corpus and an experiment. Leaves: a run folder with `config.toml`, `metrics.jsonl`,
checkpoints and `best.safetensors`, the one with the fewest Validation bits per event. Anything that
would invalidate that selection stops the run: an empty Validation split, a loss that is not finite,
a corpus or configuration other than the run's.
Paper: Methods, "Optimization and Reproducibility Settings". Distillation: Hinton, Vinyals and Dean
(2015).
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaiom import __version__
from vaiom.codec import to_json, to_toml
from vaiom.corpus.splits import TRAIN, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.errors import CheckpointError, ConfigError, DataError, UserError
from vaiom.features.fields import NUM_RETURN_BUCKETS
from vaiom.files import atomic_file, ensure_folder, hold_folder, sha256_of, write_bytes
from vaiom.model.checkpoint import (
    EVIDENCE,
    Checkpoint,
    Provenance,
    load_checkpoint,
    save_checkpoint,
)
from vaiom.model.vaiom import ASSET_TABLE, CLASS_TABLE, Vaiom
from vaiom.run import Run
from vaiom.training.devices import (
    ProcessGroup,
    is_rank_0,
    join_process_group,
    resolve_device,
    resolve_type,
)
from vaiom.training.experiment import SEED_LIMIT, Experiment, changed, experiment_of_run
from vaiom.training.step import RunRecord, TrainStep, load_state, save_state, seed_dropout
from vaiom.training.windows import DeviceCorpus, Scorer, train_sampler

Report = Callable[[dict[str, Any]], None]
_BETWEEN_SEEDS = 1_000


class TrainingError(UserError):
    """The run cannot continue and has no best model."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Summary of a finished run."""

    run: Path
    best_step: int
    best_bits: float
    last_step: int
    last_bits: float
    seconds: float
    """Time of training and Validation, teachers and resumed parts included, compilation excluded.
    """
    peak_gpu_mib: float | None


def train(
    corpus: Corpus,
    experiment: Experiment,
    run: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    report: Report | None = None,
    purpose: str = EVIDENCE,
    deadline: float = math.inf,
    start: Path | None = None,
) -> TrainResult:
    """Train an experiment on a corpus into a run folder, its teachers first; with `resume`,
    continue a stopped run.

    A run whose next Validation would come after `deadline` (as of `time.time`) stops before it, and
    may be resumed; teachers are always finished. `start` is a checkpoint with the initial weights,
    selected if no step is better.
    """
    with ExitStack() as stack:
        if is_rank_0():
            ensure_folder(run if run.exists() else run.parent)
            stack.enter_context(hold_folder(run))
        if Run(run).exists and not resume:
            fix = "pass --resume, or choose another --out"
            raise ConfigError("the run folder holds a run already", where=run, fix=fix)
        initial = load_checkpoint(start) if start else None
        if initial:
            require_start(initial, corpus, experiment)
        group, own_device = stack.enter_context(join_process_group(resolve_device(device)))
        teachers, checkpoints, seconds = teachers_of(experiment), [], 0.0
        for number, teacher in enumerate(teachers, start=1):
            folder, labels = (
                Run(Run(run).teachers / str(number)),
                {"teacher": number, "teachers": len(teachers)},
            )
            require_length(folder, teacher)
            seconds += (
                _Run(corpus, teacher, folder, own_device, group, report, purpose, labels=labels)
                .go()
                .seconds
            )
            checkpoints.append(folder.best)
        # Before there is a configuration, a run that was killed may have left other weights.
        if start and is_rank_0() and not Run(run).config.exists():
            write_bytes(Run(run).start, start.read_bytes())
        student = _Run(
            corpus, experiment, Run(run), own_device, group, report, purpose, checkpoints, initial
        )
        result = student.go(deadline)
        return replace(result, seconds=result.seconds + seconds)


def require_start(start: Checkpoint, corpus: Corpus, experiment: Experiment) -> None:
    """Refuse weights of another network or other buckets, and weights that have seen held-out
    events.
    """
    if start.config != experiment.model:
        fix = "leave the settings of the model as they are"
        raise ConfigError("the weights are of another network than the experiment", fix=fix)
    if not corpus.tokenizer.has_buckets_of(start.tokenizer):
        fix = "vaiom corpus build BARS_DIR --like the model, the same that --from names"
        raise CheckpointError(
            "the weights are of other buckets than the corpus has", where=corpus.path, fix=fix
        )
    splits = SplitConfig.from_json(start.provenance.splits), corpus.splits
    seen, own = ((each.train_end, each.validation[1]) for each in splits)
    if own[0] < seen[0] or own[1] < seen[1]:
        seen_ends, own_ends = ("{:%Y-%m-%d} and {:%Y-%m-%d}".format(*ends) for ends in (seen, own))
        problem = "the weights have learned from, or were selected on, what this corpus holds out"
        expected = f"Train and Validation that end at {seen_ends} or later"
        fix = (
            "build the corpus with later boundaries, or begin with older weights (vaiom models "
            "lists some)"
        )
        raise DataError(problem, where=corpus.path, expected=expected, got=own_ends, fix=fix)


def require_length(run: Run, teacher: Experiment) -> None:
    """Refuse to train a teacher longer or shorter than it began: its student may have learned from
    it already.
    """
    settings = changed(experiment_of_run(run.path), teacher) if run.config.exists() else {}
    for name in settings.keys() & {"steps", "patience"}:
        new, old = settings[name]
        fix = f"resume with {name}={old}, or start a new run"
        raise ConfigError(
            f"a student's teachers keep their {name}",
            where=run.path,
            expected=old,
            got=new,
            fix=fix,
        )


def load_weights(model: Vaiom, start: Checkpoint, tokenizer: Tokenizer) -> None:
    """Copy weights into a model with another tokenizer; new assets start as the unknown one."""
    tensors, classes = start.model.state_dict(), start.tokenizer.class_names
    rows = {
        ASSET_TABLE: [start.tokenizer.asset_id(symbol) for symbol in ("", *tokenizer.symbols)],
        # New classes start as the class that their assets were read as.
        CLASS_TABLE: [
            classes.index(name) if name in classes else 0 for name in tokenizer.class_names
        ],
    }
    model.load_state_dict(
        {name: each[rows[name]] if name in rows else each for name, each in tensors.items()}
    )


def teachers_of(experiment: Experiment) -> list[Experiment]:
    """The experiments of a student's teachers: its own settings with other seeds."""
    seeds = [
        experiment.train.seed + _BETWEEN_SEEDS * number
        for number in range(1, experiment.train.teachers + 1)
    ]
    alone = replace(experiment, name=f"{experiment.name}-teacher")
    return [
        alone.with_changes(teachers=0, teacher_share=0.0, seed=seed % SEED_LIMIT) for seed in seeds
    ]


def mean_probs(
    checkpoints: Sequence[Path], corpus: Corpus, data: DeviceCorpus, dtype: torch.dtype
) -> torch.Tensor:
    """(1 or 2, N, 16) mean of the teachers on the corpus and, if windows are mirrored, mirrored; 0
    outside Train.
    """
    rows = np.flatnonzero(corpus.valid_base & (corpus.split_codes == corpus.splits.code(TRAIN)))
    index = torch.from_numpy(rows).to(data.device)
    views = [data, data.mirrored()] if data.mirror else [data]
    table = torch.zeros(
        len(views), len(data.x), NUM_RETURN_BUCKETS, dtype=torch.float16, device=data.device
    )
    teachers = [load_checkpoint(path).model.to(data.device) for path in checkpoints]
    for view, out in zip(views, table, strict=True):
        probs = [
            Scorer(teacher, view, dtype, record=False).predict(rows).exp() for teacher in teachers
        ]
        out[index] = torch.stack(probs).mean(dim=0).half()
    return table


@dataclass
class _Run:
    corpus: Corpus
    experiment: Experiment
    folder: Run
    device: torch.device
    group: ProcessGroup
    report: Report | None
    purpose: str
    teachers: Sequence[Path] = ()
    start: Checkpoint | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    """Added to every report."""

    def __post_init__(self) -> None:
        corpus, experiment, device, start = self.corpus, self.experiment, self.device, self.start
        self.config, context = experiment.train, experiment.model.history
        self.sampler = train_sampler(
            corpus, experiment.model.context, self.config.seed, self.config.windows_per_step
        )
        self.validation = corpus.endpoints(VALIDATION, context)
        if not len(self.validation):
            span = "{:%Y-%m-%d} to {:%Y-%m-%d}".format(*corpus.splits.validation)
            expected = f"valid targets in {span} with {context} bars of history"
            fix = (
                "build the corpus with boundaries that its bars cover (--train-end moves them all)"
            )
            raise DataError(
                "Validation has no event to select a model on", expected=expected, fix=fix
            )
        dtype = resolve_type(self.config.precision, device)
        # Every process starts from the same parameters; dropout differs.
        torch.manual_seed(self.config.seed)
        model = Vaiom(experiment.model, corpus.tokenizer.vocabulary_sizes).to(device)
        if start:
            load_weights(model, start, corpus.tokenizer)
        data = DeviceCorpus(corpus, experiment.model, device, self.config.mirror)
        if self.teachers:
            data.teacher = mean_probs(self.teachers, corpus, data, dtype)
        self.step = TrainStep(model, data, self.config, dtype, self.group)
        self.scorer = Scorer(self.step.ema_model, data, dtype)
        self.record = RunRecord(
            config_sha256=sha256_of(f"{experiment.sha256} {start.sha256}".encode())
            if start
            else experiment.sha256,
            tokenizer_sha256=corpus.tokenizer.sha256,
            corpus_sha256=corpus.sha256,
        )

    def go(self, deadline: float = math.inf) -> TrainResult:
        self._prepare()
        if self.record.step < self.config.steps:
            self.scorer.compile()
        if self.start and not self.record.step:
            self._log(0, None, self._validate(0))
            if is_rank_0():
                self._save(self.folder.best)
        self.step.model.train()
        running, counted = torch.zeros((), device=self.device), 0
        first = self.record.step + 1
        clock, validated = time.perf_counter(), time.time()
        for number in range(first, self.config.steps + 1):
            if 0 < self.config.patience <= self.record.stale_validations:
                break
            self.step.set_step(number)
            running += self.step(self.sampler.draw(number))
            counted += 1
            if number == first:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                clock = time.perf_counter()  # the first step compiles
            validates = number % self.config.validate_every == 0 or number == self.config.steps
            if validates or number % self.config.log_every == 0:
                loss = float(self.group.sum(running)) / counted
                running.zero_()
                counted = 0
                self._require_finite(loss, number)
                bits = self._validate(number) if validates else None
                now = time.perf_counter()
                self.record, clock = (
                    replace(self.record, seconds=self.record.seconds + now - clock),
                    now,
                )
                # Logged before the state is saved, so that resuming neither loses nor repeats a
                # line.
                self._log(number, loss, bits)
                if validates:
                    if is_rank_0():
                        self._write_checkpoint()
                    self.group.wait()
                    seed_dropout(self.config.seed, self.group.rank, number)
                    since, validated = validated, time.time()
                    if self.group.sum(
                        torch.tensor(float(2 * validated - since > deadline), device=self.device)
                    ):
                        break
        assert self.record.best_bits is not None
        assert self.record.last_bits is not None
        return TrainResult(
            run=self.folder.path,
            best_step=self.record.best_step,
            best_bits=self.record.best_bits,
            last_step=self.record.step,
            last_bits=self.record.last_bits,
            seconds=self.record.seconds,
            peak_gpu_mib=torch.cuda.max_memory_allocated(self.device) / 2**20
            if self.device.type == "cuda"
            else None,
        )

    def _prepare(self) -> None:
        if steps := self.folder.saved_steps():
            self.record = load_state(self.folder.state(steps[-1]), self.step, self.record)
            if self.config.steps < self.record.step:
                done, got = (f"steps={each}" for each in (self.record.step, self.config.steps))
                problem, where = "the run has gone further than that", self.folder.path
                raise ConfigError(problem, where=where, expected=f"{done} or more", got=got)
            if not self.folder.best.exists():
                problem = (
                    "the run has no best model to go on from: its loss was not finite, or "
                    "the file was removed"
                )
                raise TrainingError(problem, where=self.folder.best, fix="start a new run")
        # All processes have read before one writes.
        self.group.wait()
        if is_rank_0():
            path = str(self.corpus.path.resolve()) if self.corpus.path else None
            origin = to_toml({"corpus": {"path": path, "sha256": self.corpus.sha256}})
            write_bytes(self.folder.config, f"{self.experiment.to_toml()}\n{origin}".encode())
            # Later lines will be logged again.
            self.folder.trim_metrics(self.record.step if steps else -1)
        seed_dropout(self.config.seed, self.group.rank, self.record.step)

    def _validate(self, number: int) -> float:
        """Bits per event of Validation, which also enter the record."""
        bits = self.scorer.mean_bits(self.validation, self.group)
        self._require_finite(bits, number)
        stale = self.record.stale_validations + 1
        self.record = replace(self.record, step=number, last_bits=bits, stale_validations=stale)
        if self.record.best_bits is None or bits < self.record.best_bits:
            self.record = replace(
                self.record, best_step=number, best_bits=bits, stale_validations=0
            )
        return bits

    def _write_checkpoint(self) -> None:
        number = self.record.step
        path = self.folder.checkpoint(number)
        self._save(path)
        if self.record.best_step == number:
            with atomic_file(self.folder.best) as staged:
                shutil.copyfile(path, staged)
        # The state comes last: where it exists, all files of its step do.
        save_state(self.folder.state(number), self.step, self.record)
        for old in self.folder.saved_steps()[: -self.config.keep_last]:
            # Steps are found by their states, so a kill between the two leaves nothing behind for
            # good.
            self.folder.checkpoint(old).unlink(missing_ok=True)
            self.folder.state(old).unlink()

    def _save(self, path: Path) -> None:
        """Write the weights as they are now."""
        provenance = Provenance(
            vaiom_version=__version__,
            corpus_sha256=self.corpus.sha256,
            inputs=list(self.corpus.manifest["inputs"]),
            splits=self.corpus.splits.to_json(),
            experiment=self.experiment.name,
            train=to_json(self.config),
            seed=self.config.seed,
            step=self.record.step,
            validation_bits=self.record.last_bits,
            purpose=self.purpose,
            start_sha256=self.start.sha256 if self.start else None,
        )
        save_checkpoint(path, self.step.ema_model, self.corpus.tokenizer, provenance)

    def _require_finite(self, value: float, number: int) -> None:
        if not math.isfinite(value):
            # A run that diverged offers no model, however good an earlier one looked.
            self.folder.best.unlink(missing_ok=True)
            problem = "the loss is not finite: the run stops and offers no model"
            fix = "--set learning_rate=... lower, or --set precision=fp32"
            raise TrainingError(
                problem, where=f"{self.folder.path}, step {number}", got=value, fix=fix
            )

    def _log(self, number: int, loss: float | None, bits: float | None) -> None:
        if not is_rank_0():
            return
        values = {
            "step": number,
            "loss_nats": loss,
            "validation_bits": bits,
            "seconds": round(self.record.seconds, 3),
        }
        entry = {name: value for name, value in values.items() if value is not None}
        with self.folder.metrics.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.report and number:
            self.report(
                {
                    **entry,
                    "steps": self.config.steps,
                    "best_bits": self.record.best_bits,
                    **self.labels,
                }
            )
