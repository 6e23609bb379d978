"""Scoring held-out windows with the main model, against a full forward pass over all positions of
the same batches.

Enters: nothing; weights are random, which cost the same as trained ones. Leaves: a `Measurement`. A
scored window needs its last position alone, so the last layer computes no other; both ways must
give the same log-probabilities.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks.race import Measurement, race
from vaiom.corpus.build import corpus_in_memory
from vaiom.corpus.splits import VALIDATION
from vaiom.errors import VaiomError
from vaiom.model.config import ModelConfig
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.training.devices import autocast, resolve_device, resolve_type
from vaiom.training.windows import DeviceCorpus, Scorer

WINDOWS = {"cpu": 256, "cuda": 1 << 15}
REPEATS = 3
TOLERANCE = {"cpu": 1e-5, "cuda": 2e-2}
"""Half-precision products on a GPU are summed in another order."""


def run(_bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """The benchmark with the main model."""
    return measure(ModelConfig())


def measure(config: ModelConfig, windows: int | None = None, repeats: int = REPEATS) -> Measurement:
    """Race both over windows of a simulated market, drawn again and again where it has too few."""
    device = resolve_device("auto")
    dtype = resolve_type("auto", device)
    market = MarketConfig(assets=2, bars=20_000)
    with tempfile.TemporaryDirectory() as folder:
        write_market(market, Path(folder) / "bars")
        corpus = corpus_in_memory(Path(folder) / "bars")
    torch.manual_seed(0)
    model = Vaiom(config, corpus.tokenizer.vocabulary_sizes).to(device).eval()
    data = DeviceCorpus(corpus, config, device)
    scorer = Scorer(model, data, dtype)
    count = windows or WINDOWS[device.type]
    rows = corpus.endpoints(VALIDATION, config.history)
    rows = rows[torch.arange(count).numpy() % len(rows)]

    def full() -> torch.Tensor:
        ends = torch.from_numpy(rows).to(device)
        with torch.no_grad(), autocast(device, dtype):
            parts = [
                return_log_probs(model(*data.inputs(part)))[:, -1]
                for part in ends.split(scorer.batch_size)
            ]
        return torch.cat(parts).cpu()

    def ours() -> torch.Tensor:
        return scorer.predict(rows).cpu()

    worst = (full() - ours()).abs().max().item()
    if not worst <= TOLERANCE[device.type]:
        raise VaiomError(f"the two passes differ by {worst:.2g} in a log-probability")
    seconds, reference = race(ours, full, repeats)
    return Measurement(
        name="evaluate",
        input=f"{count:,} windows of {config.context} rows, {device.type}",
        ours_seconds=seconds,
        reference_seconds=reference,
        equal=f"log-probabilities, to {worst:.0e}",
    )
