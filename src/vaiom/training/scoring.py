"""Log-probabilities of the next return bucket for any events of a corpus, in batches on the device.

A model with learned positions is shown the window of each event. A model whose layers see a window of rows runs over
stretches of rows, and each row is computed once: an answer depends on its receptive field alone.
Paper: Methods, "Evaluation and Ablation Protocol".
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vaiom.events.corpus import Corpus
from vaiom.events.fields import NUM_RETURN_BUCKETS
from vaiom.files import Progress
from vaiom.model.heads import class_ids, return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.training.devices import OnRows, ProcessGroup, autocast, record_graph, resolve_type
from vaiom.training.windows import DeviceCorpus, Rows

_WINDOWS = {"cpu": 64, "cuda": 512}
_STRETCHES = {"cpu": 1, "cuda": 32}
"""How many of each are scored at once."""
_STRETCH_ROWS = 4_096


def plan_stretches(rows: Rows, asset_bounds: npt.NDArray[np.int64], run_up: int, length: int) -> Rows:
    """For each of some sorted rows the first row of the stretch that scores it.

    A stretch begins `run_up` rows before the first row that it scores, or with its asset, and is `length` rows long.
    """
    firsts = np.empty(len(rows), np.int64)
    bounds = asset_bounds[np.searchsorted(asset_bounds[:, 1], rows, side="right")]
    at = 0
    while at < len(rows):
        begin, end = bounds[at]
        first = max(begin, rows[at] - run_up)
        stop = int(np.searchsorted(rows, min(first + length, end)))
        firsts[at:stop] = first
        at = stop
    return firsts


def predict_probabilities(
    model: Vaiom,
    corpus: Corpus,
    rows: npt.NDArray[np.integer],
    device: torch.device,
    precision: str = "auto",
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """Probabilities (n, 16) of the next return bucket of each row, from what the model sees up to there."""
    scorer = Scorer(model, DeviceCorpus(corpus, model.config, device), device, resolve_type(precision, device))
    return np.asarray(scorer.answers(rows.astype(np.int64), progress).double().exp().cpu().numpy())


def hidden_states(
    model: Vaiom, corpus: Corpus, rows: Rows, device: torch.device, progress: Progress | None = None
) -> Tensor:
    """(n, D) on the device: the trunk's last hidden state at each row."""
    scorer = Scorer(model, DeviceCorpus(corpus, model.config, device), device, torch.float32, hidden=True, record=False)
    return scorer.answers(rows, progress)


class Scorer:
    """Scores events with one model; on a GPU the forward pass is compiled once and replayed as a graph, unless told.

    With `hidden` it gives the trunk's last hidden states instead of log-probabilities.
    """

    def __init__(
        self,
        model: Vaiom,
        data: DeviceCorpus,
        device: torch.device,
        dtype: torch.dtype,
        *,
        record: bool = True,
        hidden: bool = False,
    ) -> None:
        self.hidden = hidden
        self.model, self.data, self.device, self.dtype = model, data, device, dtype
        self.in_stretches = bool(model.config.attention_window)
        self.run_up = model.config.receptive_field - 1
        self.length = max(_STRETCH_ROWS, 2 * model.config.receptive_field)
        self.batch = (_STRETCHES if self.in_stretches else _WINDOWS)[device.type]
        self._forward: OnRows | None = None if record and device.type == "cuda" else self._answers

    def compile(self) -> None:
        """Do now what the first call would otherwise pay for; nothing on a CPU."""
        if self._forward is None:
            self.answers(np.full(1, self.data.context - 1))

    def answers(self, rows: Rows, progress: Progress | None = None) -> Tensor:
        """(n, 16) log-probabilities of the rows, or (n, D) hidden states, on the device."""
        rows = np.ascontiguousarray(rows)
        order, begins, pass_of_row, place = self._plan(rows)
        size = self.model.config.width if self.hidden else NUM_RETURN_BUCKETS
        out = torch.empty(len(rows), size, device=self.device)
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(begins), self.batch):
                part = begins[start : start + self.batch]
                # Every batch has one size: the last is filled up with its own first row.
                full = np.concatenate([part, np.repeat(part[:1], self.batch - len(part))])
                starts = torch.from_numpy(full).to(self.device)
                if self._forward is None:
                    self._forward = record_graph(self.model.compiled(self._answers), starts)
                answers = self._forward(starts)
                mine = slice(*np.searchsorted(pass_of_row, [start, start + self.batch]))
                chosen = (torch.from_numpy(each).to(self.device) for each in (pass_of_row[mine] - start, place[mine]))
                out[torch.from_numpy(order[mine]).to(self.device)] = answers[tuple(chosen)]
                if progress:
                    progress(mine.stop, len(rows), "events")
        self.model.train(training)
        return out

    def _plan(self, rows: Rows) -> tuple[Rows, Rows, Rows, Rows]:
        """An order of the rows; where passes begin; for each row in that order its pass and its place there."""
        if not self.in_stretches:
            each = np.arange(len(rows))
            return each, rows, each, np.zeros_like(each)
        order = np.argsort(rows, kind="stable")
        firsts = plan_stretches(rows[order], self.data.asset_bounds, self.run_up, self.length)
        begins, number = np.unique(firsts, return_inverse=True)
        return order, begins, number, rows[order] - firsts

    def mean_bits(self, rows: Rows, group: ProcessGroup | None = None) -> float:
        """Bits per event over all rows; processes of a group share them."""
        group = group or ProcessGroup()
        own = rows[group.rank :: group.size]
        buckets = self.data.targets["return"][torch.from_numpy(own).to(self.device)]
        nats = -self.answers(own).gather(1, class_ids(buckets)[:, None]).double().sum()
        return float(group.sum(nats)) / len(rows) / math.log(2)

    def _answers(self, begins: Tensor) -> Tensor:
        """(B, T, 16) of the stretches that begin at these rows, or (B, 1, 16) of the windows that end there."""
        with autocast(self.device, self.dtype):
            seen = self.data.stretches(begins, self.length) if self.in_stretches else self.data.inputs(begins)
            hidden = self.model.hidden(*seen, last_only=not self.in_stretches)
            return hidden if self.hidden else return_log_probs(self.model.heads(hidden))
