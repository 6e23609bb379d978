"""The training run: teachers, steps, Validation, checkpoints, selection, resumption.

Enters: a corpus and an experiment. Leaves: a run folder with `config.toml`, `metrics.jsonl`,
checkpoints and `best.safetensors`, the one with the fewest Validation bits per event. Anything that
would invalidate that selection stops the run: an empty Validation split, a loss that is not finite,
a corpus or configuration other than the run's.
Paper: Methods, "Optimization and Reproducibility Settings".
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

import torch

from vaiom import __version__
from vaiom.codec import to_json, to_toml
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError, DataError, UserError
from vaiom.files import atomic_file, ensure_folder, hold_folder, sha256_of, write_bytes
from vaiom.model.checkpoint import (
    EVIDENCE,
    Checkpoint,
    Provenance,
    load_checkpoint,
    save_checkpoint,
)
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run
from vaiom.training.devices import (
    ProcessGroup,
    is_rank_0,
    join_process_group,
    resolve_device,
    resolve_type,
)
from vaiom.training.experiment import Experiment
from vaiom.training.start import load_weights, require_start
from vaiom.training.step import RunRecord, TrainStep, load_state, save_state, seed_dropout
from vaiom.training.teachers import mean_probs, require_length, teachers_of
from vaiom.training.windows import DeviceCorpus, Rows, Scorer, train_sampler

Report = Callable[[dict[str, Any]], None]


class TrainingError(UserError):
    """The run cannot continue and has no best model."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Summary of a finished run."""

    run: Path
    best_step: int
    best_bits: float
    """Bits per event of Validation at the best step."""
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
    """Train an experiment on a corpus into a run folder, its teachers first.

    Args:
        corpus: Train is learned from, Validation selects the step; nothing else is read.
        experiment: The model, and how it is trained.
        run: Folder of the run.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        resume: Go on with a run that was stopped.
        report: Called with the metrics of each logged step.
        purpose: `evidence`, or `use` for a model that leaves no data to judge it on.
        deadline: A run whose next Validation would come later, as of `time.time`, stops before it
            and may be resumed; teachers are always finished.
        start: A checkpoint with the initial weights, which is selected if no step is better.
    """
    with ExitStack() as stack:
        if is_rank_0():
            ensure_folder(run if run.exists() else run.parent)
            stack.enter_context(hold_folder(run))
        folder = Run(run)
        if folder.exists and not resume:
            raise ConfigError(
                "the run folder holds a run already",
                where=run,
                fix="pass --resume, or choose another --out",
            )
        initial = load_checkpoint(start) if start else None
        if initial:
            require_start(initial, corpus, experiment)
        group, own_device = stack.enter_context(join_process_group(resolve_device(device)))
        seconds = 0.0
        checkpoints = []
        teachers = teachers_of(experiment)
        for number, teacher in enumerate(teachers, start=1):
            teacher_folder = Run(folder.teachers / str(number))
            require_length(teacher_folder, teacher)
            labels = {"teacher": number, "teachers": len(teachers)}
            training = _Training(
                corpus, teacher, teacher_folder, own_device, group, report, purpose, labels=labels
            )
            seconds += training.run().seconds
            checkpoints.append(teacher_folder.best)
        # Without a configuration, weights that lie here are of a run that was killed before.
        if start and is_rank_0() and not folder.config.exists():
            write_bytes(folder.start, start.read_bytes())
        student = _Training(
            corpus, experiment, folder, own_device, group, report, purpose, checkpoints, initial
        )
        result = student.run(deadline)
        return replace(result, seconds=result.seconds + seconds)


@dataclass
class _Training:
    """The training of one model, in every process of a group; the first one writes."""

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
        corpus = self.corpus
        model_config = self.experiment.model
        self.config = config = self.experiment.train
        self.sampler = train_sampler(
            corpus, model_config.context, config.seed, config.windows_per_step
        )
        self.validation = validation_rows(corpus, model_config.history)
        dtype = resolve_type(config.precision, self.device)
        # Every process starts from the same parameters; dropout differs.
        torch.manual_seed(config.seed)
        model = Vaiom(model_config, corpus.tokenizer.vocabulary_sizes).to(self.device)
        config_sha256 = self.experiment.sha256
        if self.start:
            load_weights(model, self.start, corpus.tokenizer)
            config_sha256 = sha256_of(f"{config_sha256} {self.start.sha256}".encode())
        data = DeviceCorpus(corpus, model_config, self.device, config.mirror)
        if self.teachers:
            data.teacher = mean_probs(self.teachers, corpus, data, dtype)
        self.step = TrainStep(model, data, config, dtype, self.group)
        self.scorer = Scorer(self.step.ema_model, data, dtype)
        self.record = RunRecord(
            config_sha256=config_sha256,
            tokenizer_sha256=corpus.tokenizer.sha256,
            corpus_sha256=corpus.sha256,
        )

    def run(self, deadline: float = math.inf) -> TrainResult:
        """Train from the last saved state, or from the start, to the last step."""
        self._restore()
        self._write_config()
        seed_dropout(self.config.seed, self.group.rank, self.record.step)
        if self.record.step < self.config.steps:
            self.scorer.compile()
        if self.start and not self.record.step:
            self._log(0, None, self._validate(0))
            if is_rank_0():
                self._save(self.folder.best)
        self._take_steps(deadline)
        assert self.record.best_bits is not None
        assert self.record.last_bits is not None
        peak = None
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        return TrainResult(
            run=self.folder.path,
            best_step=self.record.best_step,
            best_bits=self.record.best_bits,
            last_step=self.record.step,
            last_bits=self.record.last_bits,
            seconds=self.record.seconds,
            peak_gpu_mib=peak,
        )

    def _take_steps(self, deadline: float) -> None:
        """Train to the last step, the end of patience or the deadline."""
        self.step.model.train()
        loss_sum = torch.zeros((), device=self.device)
        num_summed = 0
        first = self.record.step + 1
        clock = time.perf_counter()
        validated = time.time()
        for number in range(first, self.config.steps + 1):
            if 0 < self.config.patience <= self.record.stale_validations:
                return
            self.step.set_step(number)
            loss_sum += self.step(self.sampler.draw(number))
            num_summed += 1
            if number == first:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                clock = time.perf_counter()  # the first step compiles
            validates = number % self.config.validate_every == 0 or number == self.config.steps
            if not validates and number % self.config.log_every:
                continue
            loss = float(self.group.sum(loss_sum)) / num_summed
            loss_sum.zero_()
            num_summed = 0
            self._require_finite(loss, number)
            bits = self._validate(number) if validates else None
            now = time.perf_counter()
            self.record = replace(self.record, seconds=self.record.seconds + now - clock)
            clock = now
            # Logged before the state is saved, so that resuming neither loses nor repeats a line.
            self._log(number, loss, bits)
            if validates:
                if is_rank_0():
                    self._write_checkpoint()
                self.group.wait()
                seed_dropout(self.config.seed, self.group.rank, number)
                before = validated
                validated = time.time()
                # One process that comes too late stops all.
                is_late = validated + (validated - before) > deadline
                if self.group.sum(torch.tensor(float(is_late), device=self.device)):
                    return

    def _restore(self) -> None:
        """Go on from the last saved state, if there is one."""
        steps = self.folder.saved_steps()
        if steps:
            self.record = load_state(self.folder.state(steps[-1]), self.step, self.record)
            if self.config.steps < self.record.step:
                raise ConfigError(
                    "the run has gone further than that",
                    where=self.folder.path,
                    expected=f"steps={self.record.step} or more",
                    got=f"steps={self.config.steps}",
                )
            if not self.folder.best.exists():
                raise TrainingError(
                    "the run has no best model to go on from: its loss was not finite, or the file "
                    "was removed",
                    where=self.folder.best,
                    fix="start a new run",
                )
        self.group.wait()  # all processes have read before one writes
        if is_rank_0():
            # Later lines will be logged again.
            self.folder.trim_metrics(self.record.step if steps else -1)

    def _write_config(self) -> None:
        """Write `config.toml`, with the corpus that the run learns from."""
        if is_rank_0():
            path = str(self.corpus.path.resolve()) if self.corpus.path else None
            origin = to_toml({"corpus": {"path": path, "sha256": self.corpus.sha256}})
            write_bytes(self.folder.config, f"{self.experiment.to_toml()}\n{origin}".encode())

    def _validate(self, number: int) -> float:
        """Bits per event of Validation, which also enter the record."""
        bits = self.scorer.mean_bits(self.validation, self.group)
        self._require_finite(bits, number)
        self.record = replace(
            self.record,
            step=number,
            last_bits=bits,
            stale_validations=self.record.stale_validations + 1,
        )
        if self.record.best_bits is None or bits < self.record.best_bits:
            self.record = replace(
                self.record, best_step=number, best_bits=bits, stale_validations=0
            )
        return bits

    def _write_checkpoint(self) -> None:
        """Save weights and state of the present step; old ones are removed."""
        number = self.record.step
        path = self.folder.checkpoint(number)
        self._save(path)
        if self.record.best_step == number:
            with atomic_file(self.folder.best) as staged:
                shutil.copyfile(path, staged)
        # The state comes last: where it exists, all files of its step do.
        save_state(self.folder.state(number), self.step, self.record)
        for old in self.folder.saved_steps()[: -self.config.keep_last]:
            # Steps are found by their states: after a kill between the two, the next run removes
            # the state.
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
        """Stop the run where a loss is not finite, and remove its best model."""
        if not math.isfinite(value):
            # A run that diverged offers no model, however good an earlier one looked.
            self.folder.best.unlink(missing_ok=True)
            raise TrainingError(
                "the loss is not finite: the run stops and offers no model",
                where=f"{self.folder.path}, step {number}",
                got=value,
                fix="--set learning_rate=... lower, or --set precision=fp32",
            )

    def _log(self, number: int, loss: float | None, bits: float | None) -> None:
        """Write a line of metrics, and report it; what a line lacks is left out."""
        if not is_rank_0():
            return
        entry: dict[str, Any] = {"step": number}
        if loss is not None:
            entry["loss_nats"] = loss
        if bits is not None:
            entry["validation_bits"] = bits
        entry["seconds"] = round(self.record.seconds, 3)
        with self.folder.metrics.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.report and number:
            shown = {"steps": self.config.steps, "best_bits": self.record.best_bits}
            self.report({**entry, **shown, **self.labels})


def validation_rows(corpus: Corpus, history: int) -> Rows:
    """The Validation events with that many rows of history, one of which there must be."""
    rows = corpus.endpoints(VALIDATION, history)
    if not len(rows):
        start, end = corpus.splits.validation
        raise DataError(
            "Validation has no event to select a model on",
            expected=f"valid targets in {start:%Y-%m-%d} to {end:%Y-%m-%d} with {history} bars of "
            "history",
            fix="build the corpus with boundaries that its bars cover (--train-end moves them all)",
        )
    return rows
