"""One optimizer step: gather, forward, loss, backward, clip, update; and the training state to
resume from.

Paper: Methods, "Supervision Scope" and "Optimization and Reproducibility Settings".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

FORMAT, FORMAT_VERSION = "vaiom-training-state", 1
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TrainStep:
    """Owns the optimizer, the loss scaler and the moving average of the weights; call it with the
    rows of one step.

    On a GPU the whole step is one CUDA graph; on a CPU micro-batches run one by one. Means are per
    micro-batch in both.
    """

    def __init__(
        self,
        model: Vaiom,
        data: DeviceCorpus,
        config: TrainConfig,
        dtype: torch.dtype,
        group: ProcessGroup = ALONE,
    ) -> None:
        self.model, self.data, self.config, self.dtype, self.group = (
            model,
            data,
            config,
            dtype,
            group,
        )
        self.device = device = data.device
        self.own_batches = self.group.share(config.num_micro_batches)
        self.ema_model: Vaiom = copy.deepcopy(model) if config.ema_decay else model
        # A recorded graph reads the rate, and the weight of a step in the average, from tensors.
        self._ema_weight = torch.ones((), device=device)
        fused = device.type == "cuda"
        self._rate = torch.tensor(config.learning_rate, device=device) if fused else None
        rate, decay = (
            config.learning_rate if self._rate is None else self._rate,
            config.weight_decay,
        )
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=rate, weight_decay=decay, fused=fused, capturable=fused
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self._run: OnRows | None = None

    def __call__(self, rows: Rows) -> Tensor:
        """Train on the windows that end at `rows`; returns this process's share of the mean return
        loss, in nats.
        """
        own = rows[
            self.own_batches.start * self.config.micro_batch : self.own_batches.stop
            * self.config.micro_batch
        ]
        ends = torch.from_numpy(own).to(self.device)
        if self.device.type == "cpu":
            return self._update(list(ends.split(self.config.micro_batch)), 1)
        if self._run is None:
            self._run = self._prepare(ends)
        return self._run(ends)

    def set_step(self, number: int) -> None:
        """Set the learning rate and the weight in the moving average for a step, counted from 1."""
        rate = self.config.rate_at(number)
        if self._rate is not None:
            self._rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate
        # Bias-corrected: no initial weights are left in the average.
        decay = self.config.ema_decay
        self._ema_weight.fill_((1 - decay) / (1 - decay**number))

    def loss(self, ends: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
        """(total, return) losses of the windows that end at `ends`, which are `num_groups`
        micro-batches.
        """
        windows = self.data.windows(ends)
        last = self.config.scope == "last"
        with autocast(self.device, self.dtype):
            logits = self.model(windows.x_BTF, windows.meta_BM, last_only=last)
        targets = (
            {name: t[:, -1:] for name, t in windows.targets.items()} if last else windows.targets
        )
        teacher = (
            windows.teacher_BTK[:, -1:]
            if last and windows.teacher_BTK is not None
            else windows.teacher_BTK
        )
        weights, teacher_share = self.config.task_weights, self.config.teacher_share
        total, terms = objective(logits, targets, weights, num_groups, teacher, teacher_share)
        return total, terms["return"].detach()

    def _update(self, batches: list[Tensor], groups_per_batch: int, loss: Any = None) -> Tensor:
        """Accumulate the mean gradient over all micro-batches of the step, then update once."""
        share = groups_per_batch / self.config.num_micro_batches
        self.optimizer.zero_grad(set_to_none=True)
        reported = torch.zeros((), device=self.device)
        for ends in batches:
            total, of_return = (loss or self.loss)(ends, groups_per_batch)
            self.scaler.scale(total * share).backward()
            reported = reported + of_return * share
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

    def _prepare(self, ends: Tensor) -> OnRows:
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
        networks, parameters = (self.model, self.ema_model), list(self.model.parameters())
        models = [copy.deepcopy(network.state_dict()) for network in networks]
        moments = [copy.deepcopy(self.optimizer.state[parameter]) for parameter in parameters]
        scaler, random_state = self.scaler.state_dict(), torch.cuda.get_rng_state(self.device)
        yield
        with torch.no_grad():
            for network, before in zip(networks, models, strict=True):
                network.load_state_dict(before)
            for parameter, before in zip(parameters, moments, strict=True):
                for name, tensor in self.optimizer.state[parameter].items():
                    tensor.copy_(before[name]) if name in before else tensor.zero_()
            for tensor, key in (
                (self.scaler._scale, "scale"),
                (self.scaler._growth_tracker, "_growth_tracker"),
            ):
                if tensor is not None:
                    tensor.fill_(scaler[key])
        torch.cuda.set_rng_state(random_state, self.device)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Progress of a run, its best step so far, and hashes of what it was started with."""

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
        tensors |= {
            f"averaged/{name}": value for name, value in step.ema_model.state_dict().items()
        }
    for name, parameter in step.model.named_parameters():
        for key in _MOMENTS:
            tensors[f"optimizer/{key}/{name}"] = step.optimizer.state[parameter][key]
    contents = {"record": to_json(record), "scaler": step.scaler.state_dict()}
    write_tensors(path, FORMAT, FORMAT_VERSION, contents, arrays_of(tensors))


def load_state(path: Path, step: TrainStep, ours: RunRecord) -> RunRecord:
    """Restore model, optimizer and scaler in place, if the run's configuration and data
    are `ours`.
    """
    header, arrays = read_tensors(path, FORMAT, FORMAT_VERSION)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    try:
        record = from_json(RunRecord, header["record"])
        for name in ("config", "tokenizer", "corpus"):  # the most telling first
            expected, got = getattr(record, f"{name}_sha256"), getattr(ours, f"{name}_sha256")
            if expected != got:
                problem = (
                    f"the run was started with another "
                    f"{'configuration' if name == 'config' else name}"
                )
                fix = (
                    "resume with what the run was started with (its config.toml says it), or "
                    "start a new run"
                )
                raise ConfigError(
                    problem, where=path.parents[1], expected=expected, got=got, fix=fix
                )
        step.model.load_state_dict(
            {name: tensors[f"model/{name}"] for name in step.model.state_dict()}
        )
        if step.ema_model is not step.model:
            step.ema_model.load_state_dict(
                {name: tensors[f"averaged/{name}"] for name in step.model.state_dict()}
            )
        for name, parameter in step.model.named_parameters():
            state = {key: tensors[f"optimizer/{key}/{name}"] for key in _MOMENTS}
            step.optimizer.state[parameter] = {
                key: value.to(step.device) for key, value in state.items()
            }
        if header["scaler"]:
            step.scaler.load_state_dict(header["scaler"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem, got = "the training state does not fit this run", str(error).splitlines()[0]
        fix = (
            "resume with the configuration and device type the run was started with, or start a "
            "new run"
        )
        raise CheckpointError(problem, where=path, got=got, fix=fix) from error
    return record


def seed_dropout(seed: int, rank: int, step: int) -> None:
    """Seed the random numbers that follow a saved state, differently in each process of a group."""
    torch.manual_seed(
        int(np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)[0])
    )
