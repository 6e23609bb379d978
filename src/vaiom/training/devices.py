"""Devices, number formats, recorded CUDA graphs, and groups of `torchrun` processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from vaiom.errors import ConfigError

OnRows = Callable[[Tensor], Tensor]
"""A computation on the rows of a corpus, whose inputs lie on a device."""


def resolve_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`; a device that is not there is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise ConfigError(
            "not a device that is supported", expected="auto, cpu, cuda or cuda:N", got=repr(name)
        )
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        expected = f"one of {count} CUDA devices" if count else "a machine with a CUDA device"
        raise ConfigError("no such device", expected=expected, got=name, fix="--device cpu")
    return device


def resolve_type(precision: str, device: torch.device) -> torch.dtype:
    """The type of matrix products; `auto` is FP16 on GPUs and FP32 on CPUs."""
    if precision == "auto":
        precision = "fp16" if device.type == "cuda" else "fp32"
    if precision != "fp32" and device.type == "cpu":
        fix = "--set precision=fp32, or a CUDA device"
        raise ConfigError("CPUs train in FP32 here", got=f"precision={precision}", fix=fix)
    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[precision]


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Matrix products in this type, all else in FP32."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def record_graph(compute: OnRows, rows: Tensor) -> OnRows:
    """A CUDA graph of a computation, which is replayed for other rows of the same number.

    Recording needs a warm-up on a side stream. The output is one tensor that every replay
    overwrites.
    """
    static = rows.clone()
    stream = torch.cuda.Stream(rows.device)
    stream.wait_stream(torch.cuda.current_stream(rows.device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            compute(static)
    torch.cuda.current_stream(rows.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = compute(static)

    def replay(rows: Tensor) -> Tensor:
        static.copy_(rows)
        graph.replay()
        return output

    return replay


@dataclass(frozen=True)
class ProcessGroup:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    def share(self, num_micro_batches: int) -> range:
        """The micro-batches of this process; they are whole, so that means equal those of a single
        process.
        """
        if num_micro_batches % self.size:
            raise ConfigError(
                "micro-batches cannot be shared evenly",
                expected=f"a number of processes that divides {num_micro_batches}",
                got=self.size,
                fix="choose another --nproc-per-node, or --set num_micro_batches",
            )
        count = num_micro_batches // self.size
        return range(self.rank * count, (self.rank + 1) * count)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over all processes."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, part in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Wait until every process has come here."""
        if self.size > 1:
            dist.barrier()


ALONE = ProcessGroup()


def is_rank_0() -> bool:
    """Whether this is the first process of its group, also before it joins and after it leaves."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def join_process_group(device: torch.device) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """Join the processes that `torchrun` started, or a group of one; yields the group and this
    process's device.
    """
    if "WORLD_SIZE" not in os.environ:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = resolve_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size()), device
    finally:
        dist.destroy_process_group()
