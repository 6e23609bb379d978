"""One valid file of every kind that vaiom writes, made by vaiom itself on a tiny market."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from evaluation.simulated_market import TINY_SPLITS
from reproduction.records import RUN, Record, SplitScores, gains_of
from strategies import random_bars
from training.tiny_runs import TINY
from vaiom.baselines.counts import Frequency
from vaiom.baselines.stored_losses import save_losses
from vaiom.codec import to_json
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.pack import pack
from vaiom.corpus.targets import fit_of_next_bar
from vaiom.distribution.dependence import Dependence
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.scores import event_bits, read_events
from vaiom.files import write_json
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import arrays_of, load_checkpoint
from vaiom.model.horizon_heads import FittedHorizons, HorizonHeads
from vaiom.run import Run
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.training.horizon_training import HorizonNetwork
from vaiom.training.loop import train

SPLIT = "test-h1"
CONTEXT = TINY.model.context


def make_materials(folder: Path) -> Path:
    """Bars, corpus, packed corpus, run with all that lies in one, losses, record and truth, below
    `folder`.
    """
    torch.set_num_threads(1)
    for seed, symbol in enumerate(("EURUSD", "XAUUSD")):
        write_symbol(folder / "bars", symbol, random_bars(2_400, seed))
    corpus = build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=TINY_SPLITS))
    pack(folder / "corpus", folder / "corpus.zip")
    train(corpus, TINY.with_changes(steps=4, num_layers=1), folder / "run", device="cpu")
    result = evaluate_run(folder / "run", corpus, SPLIT, device="cpu")
    rows = corpus.endpoints(SPLIT, CONTEXT)
    probs = Frequency().fit(corpus, corpus.endpoints("train", CONTEXT)).predict_proba(corpus, rows)
    bits = {"frequency": event_bits(probs, corpus.target_return[rows])}
    save_losses(folder / "losses", corpus, SPLIT, bits, CONTEXT)
    events = read_events(folder / "run", SPLIT)
    np.savez_compressed(
        folder / f"events-{SPLIT}.npz",
        symbol=events.symbols,
        target_time=events.target_times,
        bucket=events.buckets,
        bits_model=events.bits["model"],
    )
    scored = SplitScores(bits=result.bits, gains=gains_of(result.against))
    record = Record(
        kind=RUN, key="ab", name="main", timeframe="1h", validation={4: 3.2}, scored={SPLIT: scored}
    )
    record.write(folder / "record.json")
    market = MarketConfig(assets=1, bars=600)
    write_market(market, folder / "market")
    _write_beside(folder / "run")
    (folder / "truth.npz").write_bytes(next((folder / "market").rglob("*.npz")).read_bytes())
    return folder


def _write_beside(run: Path) -> None:
    """What a model knows of horizons and of assets together, made up."""
    checkpoint, matrix = load_checkpoint(Run(run).best), np.array([[1.0, 0.4], [0.4, 1.0]])
    fitted = FittedHorizons(
        checkpoint_sha256=checkpoint.sha256,
        corpus_sha256="",
        seed=0,
        validation_bits={"4": 3.2},
        fits=(replace(fit_of_next_bar(checkpoint.tokenizer), bars=4),),
    )
    HorizonHeads(
        fitted=fitted, tensors=arrays_of(HorizonNetwork(checkpoint.config, 1).state_dict())
    ).save(Run(run).horizons)
    fit = Dependence(
        checkpoint_sha256=checkpoint.sha256,
        symbols=("EURUSD", "XAUUSD"),
        classes=("FX", "SPOT"),
        covariance=matrix,
        correlation=matrix,
        decay=0.9,
        shrinkage=0.1,
        degrees={"1": 8.0, "4": None},
        references={},
        num_stamps=1,
    )
    write_json(Run(run).dependence, to_json(fit))
