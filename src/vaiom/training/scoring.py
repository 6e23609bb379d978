"""Log-probabilities of the next return bucket for any events of a corpus, in batches on the device.

Enters: a model, a corpus on the device, row numbers. Leaves: FP32 log-probabilities (n, 16) or mean bits per event.
Only the final position of each window is scored, so the last layer computes only that one.
Paper: Methods, "Evaluation and Ablation Protocol".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.model.losses import class_ids
from vaiom.model.vaiom import Vaiom
from vaiom.training.distributed import ProcessGroup
from vaiom.training.precision import autocast
from vaiom.training.windows import DeviceCorpus, Rows

Progress = Callable[[int, int, str], None]

_BATCH = {"cpu": 64, "cuda": 512}


class Scorer:
    """Scores events with one model; on a GPU the forward pass is compiled once and replayed as a graph."""

    def __init__(self, model: Vaiom, data: DeviceCorpus, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.data, self.device, self.dtype = model, data, device, dtype
        self.batch = _BATCH[device.type]
        self._forward: Callable[[Tensor], Tensor] = self._log_probs
        self._captured = device.type != "cuda"

    def compile(self) -> None:
        """Do now what the first call would otherwise pay for; nothing on a CPU."""
        if not self._captured:
            self.log_probs(np.full(1, self.data.context - 1))

    def log_probs(self, rows: Rows, progress: Progress | None = None) -> Tensor:
        """(n, 16) on the device."""
        training = self.model.training
        self.model.eval()
        out = []
        with torch.no_grad():
            ends = torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)
            for start in range(0, len(rows), self.batch):
                part = ends[start : start + self.batch]
                # Every batch has one size: the last is filled up with its own first row.
                full = torch.cat([part, part[:1].expand(self.batch - len(part))])
                out.append(self._run(full)[: len(part)].clone())
                if progress:
                    progress(min(start + self.batch, len(rows)), len(rows), "events")
        self.model.train(training)
        return torch.cat(out) if out else torch.empty(0, NUM_RETURN_BUCKETS, device=self.device)

    def mean_bits(self, rows: Rows, group: ProcessGroup | None = None) -> float:
        """Bits per event over all rows; processes of a group share them."""
        group = group or ProcessGroup()
        own = rows[group.rank :: group.size]
        log_probs = self.log_probs(own)
        buckets = self.data.targets["return"][torch.from_numpy(own).to(self.device)]
        nats = -log_probs.gather(1, class_ids(buckets)[:, None]).double().sum()
        return float(group.sum(nats)) / len(rows) / math.log(2)

    def _log_probs(self, ends: Tensor) -> Tensor:
        x_BTF, meta_BM = self.data.inputs(ends)
        with autocast(self.device, self.dtype):
            return self.model.log_probs(x_BTF, meta_BM)

    def _run(self, ends: Tensor) -> Tensor:
        if not self._captured:
            self._capture(ends)
        return self._forward(ends)

    def _capture(self, ends: Tensor) -> None:
        whole = self.model.compiles
        compiled = torch.compile(self._log_probs, fullgraph=True, dynamic=False) if whole else self._log_probs
        static = ends.clone()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                compiled(static)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = compiled(static)

        def replay(rows: Tensor) -> Tensor:
            static.copy_(rows)
            graph.replay()
            return answer

        self._forward, self._captured = replay, True
