"""Data parallelism over processes started by `torchrun`, on one machine or many.

Each process takes whole micro-batches of the same global batch, so that every mean is the one a single process takes;
gradients are summed. Paper: Methods, "Optimization" (data parallelism).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from vaiom.errors import ConfigError
from vaiom.training.precision import resolve_device


@dataclass(frozen=True)
class ProcessGroup:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def is_rank_0(self) -> bool:
        return self.rank == 0

    def share(self, num_micro_batches: int) -> range:
        """The micro-batches of this process."""
        if num_micro_batches % self.size:
            raise ConfigError(
                "micro-batches cannot be shared evenly",
                expected=f"a number of processes that divides {num_micro_batches}",
                got=self.size,
                fix="choose another --nproc-per-node, or --set num_micro_batches",
            )
        each = num_micro_batches // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum(self, value: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def is_rank_0() -> bool:
    """Whether this process speaks for its group, before it joins and after it leaves."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def join_process_group(device: torch.device) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """Join the processes that `torchrun` started; alone, a group of one. Gives the device of this process."""
    if "WORLD_SIZE" not in os.environ:
        yield ProcessGroup(), device
        return
    if device.type == "cuda":
        device = resolve_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size()), device
    finally:
        dist.destroy_process_group()
