"""One optimizer step: gather, forward, loss, backward, clip, update; and the state to resume from.

Enters: the rows at which the windows of a step end. Leaves: updated weights, and the share of the
loss that this process computed.
Paper: Methods, "Supervision Scope" and "Optimization and Reproducibility Settings".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaiom.codec import from_json, to_json
from vaiom.errors import CheckpointError, ConfigError
from vaiom.model.checkpoint import arrays_of, read_tensors, write_tensors
from vaiom.model.heads import objective
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import ALONE, OnRows, ProcessGroup, autocast, record_graph
from vaiom.training.experiment import TrainConfig
from vaiom.training.windows import DeviceCorpus, Rows

FORMAT = "vaiom-training-state"
FORMAT_VERSION = 1
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for each parameter."""

Loss = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""`TrainStep.loss`, or its compiled form."""


class TrainStep:
    """Owns the optimizer, the loss scaler and the moving average of the weights.

    Call it with the rows of one step. On a GPU the whole step is one CUDA graph; on a CPU
    micro-batches run one by one. Losses are means over a micro-batch in both.
    """

    def __init__(
        self,
        model: Vaiom,
        data: DeviceCorpus,
        config: TrainConfig,
        dtype: torch.dtype,
        group: ProcessGroup = ALONE,
    ) -> None:
        self.model = model
        self.data = data
        self.config = config
        self.dtype = dtype
        self.group = group
        self.device = data.device
        self.own_batches = group.share(config.num_micro_batches)
        self.ema_model: Vaiom = copy.deepcopy(model) if config.ema_decay else model
        """The moving average of the weights, which is validated and saved; the model itself if
        there is none."""
        # A recorded graph reads the rate, and a step's weight in the average, from tensors.
        on_gpu = self.device.type == "cuda"
        self._rate = torch.tensor(config.learning_rate, device=self.device) if on_gpu else None
        self._ema_weight = torch.ones((), device=self.device)
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate if self._rate is None else self._rate,
            weight_decay=config.weight_decay,
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)
        self._recorded: OnRows | None = None

    def __call__(self, rows: Rows) -> Tensor:
        """Train on the windows that end at these rows, those of all processes.

        Returns this process's share of the mean return loss, in nats.
        """
        size = self.config.micro_batch
        own = rows[self.own_batches.start * size : self.own_batches.stop * size]
        ends = torch.from_numpy(own).to(self.device)
        if self.device.type == "cpu":
            return self._update(list(ends.split(size)), 1, self.loss)
        if self._recorded is None:
            self._recorded = self._record(ends)
        return self._recorded(ends)

    def set_step(self, number: int) -> None:
        """Set the learning rate of a step, counted from 1, and its weight in the moving average.

        The weight is (1 - d) / (1 - d^number) for a decay of d: corrected for bias, so that nothing
        of the initial weights is left.
        """
        rate = self.config.rate_at(number)
        if self._rate is not None:
            self._rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate
        decay = self.config.ema_decay
        self._ema_weight.fill_((1 - decay) / (1 - decay**number))

    def loss(self, ends: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
        """The total loss and the return loss, in nats, of the windows that end at these rows.

        The windows are `num_groups` micro-batches.
        """
        windows = self.data.windows(ends)
        targets = windows.targets
        teacher_BTK = windows.teacher_BTK
        last_only = self.config.scope == "last"
        if last_only:
            targets = {name: target[:, -1:] for name, target in targets.items()}
            teacher_BTK = None if teacher_BTK is None else teacher_BTK[:, -1:]
        with autocast(self.device, self.dtype):
            logits = self.model(windows.x_BTF, windows.meta_BM, last_only=last_only)
        total, terms = objective(
            logits,
            targets,
            self.config.task_weights,
            num_groups,
            teacher_BTK,
            self.config.teacher_share,
        )
        return total, terms["return"].detach()

    def _update(self, batches: list[Tensor], groups_per_batch: int, loss: Loss) -> Tensor:
        """Accumulate the mean gradient over all micro-batches of the step, then update once."""
        share = groups_per_batch / self.config.num_micro_batches
        self.optimizer.zero_grad(set_to_none=True)
        reported = torch.zeros((), device=self.device)
        for ends in batches:
            total, return_loss = loss(ends, groups_per_batch)
            self.scaler.scale(total * share).backward()
            reported = reported + return_loss * share
        self.group.sum_gradients(self.model.parameters())
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema_model is not self.model:
            with torch.no_grad():
                means: list[Tensor] = list(self.ema_model.parameters())
                moves = list(torch._foreach_sub(list(self.model.parameters()), means))
                torch._foreach_mul_(moves, self._ema_weight)
                torch._foreach_add_(means, moves)
        return reported

    def _record(self, ends: Tensor) -> OnRows:
        """Compile the loss, and record the whole step as a graph if this is the only process."""
        loss = self.model.compiled(self.loss)

        def update(rows: Tensor) -> Tensor:
            return self._update([rows], len(self.own_batches), loss)

        if self.group.size > 1:
            return update
        with self._unchanged():
            return record_graph(update, ends)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore all values afterwards, in place: a recorded graph refers to these tensors."""
        networks = (self.model, self.ema_model)
        weights = [copy.deepcopy(network.state_dict()) for network in networks]
        parameters = list(self.model.parameters())
        moments = [copy.deepcopy(self.optimizer.state[parameter]) for parameter in parameters]
        scaler = self.scaler.state_dict()
        random_state = torch.cuda.get_rng_state(self.device)
        yield
        with torch.no_grad():
            for network, before in zip(networks, weights, strict=True):
                network.load_state_dict(before)
            for parameter, before in zip(parameters, moments, strict=True):
                for name, tensor in self.optimizer.state[parameter].items():
                    tensor.copy_(before[name]) if name in before else tensor.zero_()
            if self.scaler._scale is not None:
                self.scaler._scale.fill_(scaler["scale"])
            if self.scaler._growth_tracker is not None:
                self.scaler._growth_tracker.fill_(scaler["_growth_tracker"])
        torch.cuda.set_rng_state(random_state, self.device)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Progress of a run, its best step so far, and hashes of what it was started with."""

    step: int = 0
    best_step: int = 0
    best_bits: float | None = None
    last_bits: float | None = None
    """Bits per event of the last Validation."""
    stale_validations: int = 0
    """Validations since the best one."""
    seconds: float = 0.0
    config_sha256: str
    tokenizer_sha256: str
    corpus_sha256: str


def save_state(path: Path, step: TrainStep, record: RunRecord) -> None:
    """Write everything that training goes on from: weights, their average, moments, progress."""
    tensors = {f"model/{name}": value for name, value in step.model.state_dict().items()}
    if step.ema_model is not step.model:
        for name, value in step.ema_model.state_dict().items():
            tensors[f"averaged/{name}"] = value
    for name, parameter in step.model.named_parameters():
        for moment in _MOMENTS:
            tensors[f"optimizer/{moment}/{name}"] = step.optimizer.state[parameter][moment]
    contents = {"record": to_json(record), "scaler": step.scaler.state_dict()}
    write_tensors(path, FORMAT, FORMAT_VERSION, contents, arrays_of(tensors))


def load_state(path: Path, step: TrainStep, ours: RunRecord) -> RunRecord:
    """Restore model, optimizer and scaler in place, and return the record of the state.

    The state must be of a run that was started with the hashes of `ours`.
    """
    header, arrays = read_tensors(path, FORMAT, FORMAT_VERSION)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    try:
        record = from_json(RunRecord, header["record"])
        _require_same_start(record, ours, path.parents[1])
        names = list(step.model.state_dict())
        step.model.load_state_dict({name: tensors[f"model/{name}"] for name in names})
        if step.ema_model is not step.model:
            step.ema_model.load_state_dict({name: tensors[f"averaged/{name}"] for name in names})
        for name, parameter in step.model.named_parameters():
            step.optimizer.state[parameter] = {
                moment: tensors[f"optimizer/{moment}/{name}"].to(step.device) for moment in _MOMENTS
            }
        if header["scaler"]:
            step.scaler.load_state_dict(header["scaler"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            "the training state does not fit this run",
            where=path,
            got=str(error).splitlines()[0],
            fix="resume with the configuration and device type the run was started with, or start "
            "a new run",
        ) from error
    return record


def _require_same_start(stored: RunRecord, ours: RunRecord, run: Path) -> None:
    """Refuse to resume a run that was started with something else."""
    compared = {  # the most telling first
        "configuration": (stored.config_sha256, ours.config_sha256),
        "tokenizer": (stored.tokenizer_sha256, ours.tokenizer_sha256),
        "corpus": (stored.corpus_sha256, ours.corpus_sha256),
    }
    for name, (expected, got) in compared.items():
        if expected != got:
            raise ConfigError(
                f"the run was started with another {name}",
                where=run,
                expected=expected,
                got=got,
                fix="resume with what the run was started with (its config.toml says it), or start "
                "a new run",
            )


def seed_dropout(seed: int, rank: int, step: int) -> None:
    """Seed the random numbers that follow a saved state, differently in each process of a group."""
    [state] = np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(state))
