"""One optimizer step, exact and fast: gather, forward, loss, backward, clip, update.

On a GPU the loss is compiled and the whole step is replayed as one CUDA graph; on a CPU micro-batches run one by one.
Both give each micro-batch its own means, as the paper's accumulation does.
Paper: Methods, "Supervision Scope" and "Optimization and Reproducibility Settings".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vaiom.model.heads import objective
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import OnRows, ProcessGroup, autocast, record_graph
from vaiom.training.experiment import TrainConfig
from vaiom.training.windows import DeviceCorpus, Rows


class TrainStep:
    """Owns the optimizer, the loss scaler and the moving average of the weights; call it with the rows of one step."""

    def __init__(
        self,
        model: Vaiom,
        data: DeviceCorpus,
        config: TrainConfig,
        device: torch.device,
        dtype: torch.dtype,
        group: ProcessGroup | None = None,
    ) -> None:
        self.model, self.data, self.config, self.device, self.dtype = model, data, config, device, dtype
        self.group = group or ProcessGroup()
        self.own_batches = self.group.share(config.num_micro_batches)
        fused = device.type == "cuda"
        # A recorded graph reads the rate, and the weight of a step in the average, from tensors.
        self._rate = torch.tensor(config.learning_rate, device=device) if fused else None
        self.ema_model: Vaiom = copy.deepcopy(model) if config.ema_decay else model
        self._ema_weight = torch.ones((), device=device)
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate if self._rate is None else self._rate,
            weight_decay=config.weight_decay,
            fused=fused,
            capturable=fused,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self._run: OnRows | None = None

    def __call__(self, rows: Rows) -> Tensor:
        """Train on the windows that end at `rows`; returns this process's share of the mean return loss, in nats."""
        own = rows[self.own_batches.start * self.config.micro_batch : self.own_batches.stop * self.config.micro_batch]
        ends = torch.from_numpy(own).to(self.device)
        if self.device.type == "cpu":
            return self._update(list(ends.split(self.config.micro_batch)), 1)
        if self._run is None:
            self._run = self._prepare(ends)
        return self._run(ends)

    def set_step(self, number: int) -> None:
        """Take the learning rate and the weight in the moving average of a step, counted from 1."""
        rate = self.config.rate_at(number)
        if self._rate is not None:
            self._rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate
        self._ema_weight.fill_(self.config.ema_weight_at(number))

    def loss(self, ends: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
        """(total, return) losses of the windows that end at `ends`, which are `num_groups` micro-batches."""
        windows = self.data.windows(ends)
        last = self.config.scope == "last"
        with autocast(self.device, self.dtype):
            logits = self.model(windows.x_BTF, windows.meta_BM, last_only=last)
        targets = {name: t[:, -1:] for name, t in windows.targets.items()} if last else windows.targets
        teacher = windows.teacher_BTK[:, -1:] if last and windows.teacher_BTK is not None else windows.teacher_BTK
        total, terms = objective(
            logits, targets, self.config.task_weights, num_groups, teacher, self.config.teacher_share
        )
        return total, terms["return"].detach()

    def _update(self, batches: list[Tensor], groups_per_batch: int, loss: Any = None) -> Tensor:
        """Accumulate the mean over all micro-batches of the step, then move once."""
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
        """Compile the loss, and record the whole step as a graph where no other process has a share in it."""
        loss = self.model.compiled(self.loss)

        def update(rows: Tensor) -> Tensor:
            return self._update([rows], len(self.own_batches), loss)

        if self.group.size > 1:
            return update
        with self._unchanged():
            return record_graph(update, ends)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put all values back afterwards, in place: a recorded graph refers to these very tensors."""
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
            for tensor, key in ((self.scaler._scale, "scale"), (self.scaler._growth_tracker, "_growth_tracker")):
                if tensor is not None:
                    tensor.fill_(scaler[key])
        torch.cuda.set_rng_state(random_state, self.device)
