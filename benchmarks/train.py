"""An optimizer step of the main model, against the plain PyTorch implementation beside this file.

Enters: a corpus, or nothing for the simulated market. Leaves: a `Measurement` of seconds per
optimizer step; both sides must have the same loss on the same windows once dropout is off. `extra`
sets the step beside two floors of the hardware, each with rates measured in the same run: the
arithmetic of the model at the speed of a large matrix product, and the least traffic of its
activations at the speed of a copy.
Paper: Methods, "Optimization and Reproducibility Settings".
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.race import Measurement
from benchmarks.train_plain import PlainModel, PlainTrainer
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import VaiomError
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import Vaiom, count_parameters
from vaiom.training.devices import resolve_device, resolve_type
from vaiom.training.experiment import TrainConfig
from vaiom.training.step import TrainStep
from vaiom.training.windows import DeviceCorpus, train_sampler

TOLERANCE = {torch.float32: 2e-4, torch.float16: 5e-3}
# Numbers of D values per position and block that the backward pass needs: block input, queries,
# keys, values, mixed values, input of the feed-forward part, its four-times wider inside. Each is
# written and read, and so is its gradient.
SAVED_WIDTHS = 10
_PASSES = 4


def run(_bars: Path | None = None, corpus: Path | None = None) -> Measurement:
    """The benchmark on a corpus, or on a simulated market."""
    if corpus is not None:
        return measure(open_corpus(corpus), str(corpus))
    from vaiom.corpus.build import build_corpus
    from vaiom.simulation.market import MarketConfig, write_market

    with tempfile.TemporaryDirectory() as folder:
        config = MarketConfig(bars=20_000)
        write_market(config, Path(folder) / "bars")
        return measure(
            build_corpus(Path(folder) / "bars", Path(folder) / "corpus"), "simulated market"
        )


def measure(
    corpus: Corpus,
    source: str,
    model: ModelConfig | None = None,
    train: TrainConfig | None = None,
    repeats: int = 3,
) -> Measurement:
    """Race both sides in turns over blocks of steps."""
    model = model or ModelConfig()
    train = train or TrainConfig()
    device = resolve_device("auto")
    dtype = resolve_type("auto", device)
    equal = require_equal(corpus, model, train, device, dtype)
    product = _product(corpus, model, train, device, dtype)
    sampler = train_sampler(corpus, model.context, train.seed, train.windows_per_step)
    plain = _plain(corpus, model, device)
    num_ours, num_plain = (200, 10) if device.type == "cuda" else (1, 1)
    draws = (sampler.draw(step) for step in count())

    def our_steps(steps: int = num_ours) -> None:
        for rows in islice(draws, steps):
            product(rows)

    def plain_steps(steps: int = num_plain) -> None:
        for _ in range(steps):
            plain.step(train.micro_batch, train.num_micro_batches)

    our_steps(1)  # compiles
    plain_steps(1)
    taken = [
        (_seconds(our_steps, device) / num_ours, _seconds(plain_steps, device) / num_plain)
        for _ in range(repeats)
    ]
    ours, reference = (median(side) for side in zip(*taken, strict=True))
    return Measurement(
        name="train",
        input=f"{train.windows_per_step} windows of {model.context} rows: {source}, "
        f"{_device_name(device)}",
        ours_seconds=ours,
        reference_seconds=reference,
        equal=equal,
        extra=_floors(corpus, model, train, device, dtype, ours),
    )


def require_equal(
    corpus: Corpus, model: ModelConfig, train: TrainConfig, device: torch.device, dtype: torch.dtype
) -> str:
    """Both losses on one micro-batch, dropout off and parameters shared, or an error."""
    rows = train_sampler(corpus, model.context, train.seed, train.micro_batch).draw(0)
    product = _product(corpus, model, train, device, dtype)
    plain = _plain(corpus, model, device)
    copy_parameters(product.model, plain.model)
    product.model.eval()
    plain.model.eval()
    with torch.no_grad():
        ours, _ = product.loss(torch.from_numpy(rows).to(device), 1)
        theirs = plain.loss(rows)
    if not abs(float(ours) - float(theirs)) < TOLERANCE[dtype]:
        raise VaiomError(f"the losses differ: {float(ours)} against {float(theirs)}")
    return (
        f"the loss of {len(rows)} windows without dropout, to "
        f"{abs(float(ours) - float(theirs)):.1e} nats"
    )


def copy_parameters(source: Vaiom, target: PlainModel) -> None:
    """Give the plain model the product's parameters, which are stored side by side here and apart
    there.
    """
    ours = source.state_dict()
    sizes = source.heads.sizes
    heads, biases = (
        dict(zip(sizes, ours[f"heads.projection.{kind}"].split(list(sizes.values())), strict=True))
        for kind in ("weight", "bias")
    )
    named: dict[str, Any] = {
        "continuous": "encoder.continuous",
        "fusion.0": "encoder.first",
        "fusion.2": "encoder.second",
        "encoder.norm": "backbone.norm",
    }
    for number in range(source.config.num_layers):
        layer = f"encoder.layers.{number}"
        block = f"backbone.blocks.{number}"
        named |= {
            f"{layer}.self_attn.out_proj": f"{block}.attention_out",
            f"{layer}.linear1": f"{block}.feed_in",
            f"{layer}.linear2": f"{block}.feed_out",
            f"{layer}.norm1": f"{block}.attention_norm",
            f"{layer}.norm2": f"{block}.feed_norm",
        }
    state = {
        f"{theirs}.{kind}": ours[f"{mine}.{kind}"]
        for theirs, mine in named.items()
        for kind in ("weight", "bias")
    }
    for number in range(source.config.num_layers):
        for kind in ("weight", "bias"):
            packed = ours[f"backbone.blocks.{number}.query_key_value.{kind}"]
            state[f"encoder.layers.{number}.self_attn.in_proj_{kind}"] = packed
    for theirs, mine in (
        ("asset", "asset_id"),
        ("asset_class", "asset_class_id"),
        ("timeframe", "timeframe_id"),
    ):
        state[f"{theirs}.weight"] = ours[f"encoder.embeddings.{mine}.weight"]
    state["positions.weight"] = ours["backbone.positions"]
    for theirs, mine in (
        ("states", "state"),
        ("components", "return"),
        *((n, n) for n in ("gap", "vol_regime", "ordinal")),
    ):
        state[f"{theirs}.weight"] = heads[mine]
        state[f"{theirs}.bias"] = biases[mine]
    target.load_state_dict(state)


def _product(
    corpus: Corpus, model: ModelConfig, train: TrainConfig, device: torch.device, dtype: torch.dtype
) -> TrainStep:
    """The step of this package, with random weights."""
    torch.manual_seed(train.seed)
    network = Vaiom(model, corpus.tokenizer.vocabulary_sizes).to(device).train()
    return TrainStep(network, DeviceCorpus(corpus, model, device), train, dtype)


def _plain(corpus: Corpus, model: ModelConfig, device: torch.device) -> PlainTrainer:
    """The plain loop that it is raced against."""
    network = PlainModel(
        model.width, model.num_heads, model.num_layers, model.context, model.dropout, corpus
    )
    return PlainTrainer(corpus, network, model.context, device)


def _floors(
    corpus: Corpus,
    model: ModelConfig,
    train: TrainConfig,
    device: torch.device,
    dtype: torch.dtype,
    ours: float,
) -> dict[str, Any]:
    """The least time that a step can take here, by its arithmetic and by its traffic."""
    tokens = train.windows_per_step * model.context
    parameters = (
        count_parameters(model, corpus.tokenizer.vocabulary_sizes) - model.context * model.width
    )
    # Forward is two operations per parameter and token, backward twice that; causal attention does
    # half of T x T.
    attention = 3 * 2 * model.num_layers * model.context * model.width * tokens
    flops = 6 * parameters * tokens + attention
    size = torch.finfo(dtype).bits // 8
    traffic = _PASSES * SAVED_WIDTHS * model.width * size * tokens * model.num_layers
    flop_floor = flops / _product_rate(device, dtype)
    byte_floor = traffic / _copy_rate(device)
    floors = {
        "ms_per_step": round(1e3 * ours, 3),
        "flop_floor_ms": round(1e3 * flop_floor, 3),
        "byte_floor_ms": round(1e3 * byte_floor, 3),
        "share_of_flop_floor": round(flop_floor / ours, 3),
        "share_of_byte_floor": round(byte_floor / ours, 3),
    }
    if device.type == "cuda":
        floors["peak_gpu_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return floors


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large square product."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / min(_seconds(lambda: a @ a, device) for _ in range(8))


def _copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy."""
    count = 1 << (30 if device.type == "cuda" else 26)
    a, b = (torch.zeros(count, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * count / min(_seconds(lambda: b.copy_(a), device) for _ in range(8))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the GPU's work included."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    """Wait for the GPU, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    """Name of the GPU, or number of threads."""
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
