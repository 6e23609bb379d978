"""`python -m reproduction.transfer`: what a model is worth on an asset that it has never seen, and
once it has.

For each asset: `best` without teachers learns all the others, scores this one as unknown, goes on
learning on it, and stands beside the same model trained on it from nothing and beside tables of its
own Train. Every asset leaves one JSON record; `python -m reproduction --docs` makes the page of
those in docs/results/transfer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vaiom import __version__
from vaiom.baselines.counts import Frequency, HourOfWeek
from vaiom.cli.console import note, progress_bar, user_errors
from vaiom.codec import to_json
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.evaluation.access_ledger import record_access
from vaiom.evaluation.inference import paired_gain
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.scores import MODEL, ScoredEvents, event_bits, losses_of, score_events
from vaiom.experiments.adapt import adapt
from vaiom.experiments.registry import experiment
from vaiom.files import ensure_folder, read_json, write_bytes, write_json
from vaiom.model.checkpoint import load_model
from vaiom.report.tables import Column, Table, bits, count, interval, signed
from vaiom.run import Run
from vaiom.training.experiment import Experiment
from vaiom.training.loop import train
from vaiom.training.progress import training_progress

UNKNOWN = "unknown"
ADAPTED = "adapted"
SCRATCH = "from_nothing"
COMPARED = {
    UNKNOWN: ("hour_of_week", "frequency"),
    ADAPTED: (UNKNOWN, SCRATCH, "hour_of_week", "frequency"),
}
"""Whose gains are recorded, and over what."""
FROM_NOTHING = {"steps": 1_500, "validate_every": 100, "patience": 4}
PAGE_NAME = "cold-start.md"
SPLITS = {VALIDATION: "Validation", "test-h1": "Test, first half-year"}

INTRODUCTION = """\
# An asset that the model has never seen

How good is a model on an asset that it was not trained on, and is it worth training on? For each asset, `best` without
teachers was trained on all the others for {steps} steps. Compared on the asset left out:

| | |
|---|---|
| unknown | its weights as they are |
| adapted | trained on with `vaiom train --from` on the asset's own Train ([how to](forecasting.md#your-own-market)) |
| from nothing | the same network trained on that asset alone, stopped early |
| frequency, hour of week | tables of that Train |

All score the same events without the bars of other assets, in bits per event; "x over y" is the gain of x, with 95%
intervals over asset-months. Made by `python -m reproduction.transfer`, and by `make reproduce` from [results](results).
"""


def main(words: Sequence[str] | None = None) -> None:
    """Train on all assets but one, score that one, and write a record for each."""
    parser = argparse.ArgumentParser("python -m reproduction.transfer", description=__doc__)
    add = parser.add_argument
    add("--bars", type=Path, required=True, help="Bar folder: one <SYMBOL>.parquet per asset.")
    add(
        "--out",
        type=Path,
        required=True,
        help="Folder for corpora, runs and records; finished work is reused.",
    )
    add(
        "--asset", action="append", help="Asset to leave out; repeatable. By default, each in turn."
    )
    add("--seed", type=int, action="append", help="Random seed; repeatable. By default, 17.")
    add(
        "--steps", type=int, help="Training steps on the other assets; by default, those of `best`."
    )
    add(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Change a setting of every model.",
    )
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
    args = parser.parse_args(words)
    known = sorted(file.stem for file in args.bars.glob("*.parquet"))
    for asset in args.asset or known:
        for seed in args.seed or [17]:
            file = args.out / "records" / f"{asset}-s{seed}.json"
            if not file.exists():
                steps = [f"steps={args.steps}"] if args.steps else []
                base = experiment("best").with_changes(teachers=0, teacher_share=0.0, seed=seed)
                base = base.with_settings([*args.settings, *steps])
                write_json(
                    file,
                    leave_out(asset, args.bars, args.out / f"{asset}-s{seed}", base, args.device),
                )
            note(f"{asset}, seed {seed}: {read_json(file)['scored']['validation']['bits']}")


def leave_out(asset: str, bars: Path, out: Path, base: Experiment, device: str) -> dict[str, Any]:
    """Train on the others, then score, adapt and train on one asset; the record of it."""
    from vaiom.corpus.build import CorpusConfig, build_corpus

    for file in sorted(bars.glob("*.parquet")):
        link = ensure_folder(out / ("bars" if file.stem == asset else "other-bars")) / file.name
        if not link.exists():
            link.symlink_to(file.resolve())
    others = build_corpus(out / "other-bars", out / "others", overwrite=True)
    runs = {name: out / name for name in (UNKNOWN, ADAPTED, SCRATCH)}
    with progress_bar(f"all but {asset}") as progress:
        report = training_progress(progress)
        source = train(others, base, runs[UNKNOWN], device=device, resume=True, report=report)
    like = CorpusConfig(**load_model(runs[UNKNOWN]).corpus_options())
    corpus = build_corpus(out / "bars", out / "corpus", like, overwrite=True)
    seed = [f"seed={base.train.seed}"]
    adapted = adapt(corpus, runs[UNKNOWN], runs[ADAPTED], settings=seed, device=device, resume=True)
    limits = {
        name: min(value, getattr(base.train, name) or value) for name, value in FROM_NOTHING.items()
    }
    alone = base.with_changes(**limits)
    scratch = train(corpus, alone, runs[SCRATCH], device=device, resume=True)
    return {
        "asset": asset,
        "seed": base.train.seed,
        "vaiom_version": __version__,
        "settings": to_json(base),
        "train_events": int(corpus.manifest["events"]["train"]),
        "steps": {
            UNKNOWN: source.best_step,
            ADAPTED: adapted.best_step,
            SCRATCH: scratch.best_step,
        },
        "seconds": {UNKNOWN: source.seconds, ADAPTED: adapted.seconds, SCRATCH: scratch.seconds},
        "scored": {split: score(corpus, split, runs) for split in SPLITS},
    }


def score(corpus: Corpus, split: str, runs: dict[str, Path]) -> dict[str, Any]:
    """Bits of all on the events of a split, and the gains that are compared."""
    # One asset is scored on the CPU before a GPU has compiled anything.
    models = {name: ModelPredictor.load(Run(run).best, "cpu") for name, run in runs.items()}
    first = models[ADAPTED].checkpoint
    rows = heldout_rows(corpus, split, first)
    losses = losses_of((Frequency(), HourOfWeek()), corpus, rows, first.config.history)
    for name, model in models.items():
        record_access(
            corpus, split, run=name, checkpoint_sha256=model.checkpoint.sha256, num_events=len(rows)
        )
        losses[name] = event_bits(model.predict_proba(corpus, rows), corpus.target_return[rows])
    events = score_events(corpus, rows, losses)
    return {
        "events": len(rows),
        "bits": {name: float(each.mean()) for name, each in losses.items()},
        "gains": {
            name: {other: _gain(events, name, other) for other in others}
            for name, others in COMPARED.items()
        },
    }


def _gain(events: ScoredEvents, name: str, other: str) -> dict[str, Any]:
    """A gain with its interval."""
    gain = paired_gain(
        replace(events, bits={MODEL: events.bits[name], other: events.bits[other]}), other
    )
    return {
        "gain_bits": gain.gain_bits,
        "interval": gain.asset_months.interval,
        "months_won": gain.months.block_wins,
    }


def write_transfer_page(results: Path, docs: Path) -> None:
    """Write the page of the stored records, if there are any."""
    records = [read_json(file) for file in sorted(results.glob("*.json"))]
    if records:
        lengths = sorted({record["settings"]["train"]["steps"] for record in records})
        steps = " or ".join(map(count, lengths))
        tables = [transfer_table(records, split).to_markdown() for split in SPLITS]
        write_bytes(
            docs / PAGE_NAME, "\n".join([INTRODUCTION.format(steps=steps), *tables]).encode()
        )


def transfer_table(records: Sequence[dict[str, Any]], split: str) -> Table:
    """The mean of all, then a row per asset and seed."""
    names = ("frequency", "hour_of_week", UNKNOWN, ADAPTED, SCRATCH)
    pairs = ((UNKNOWN, "hour_of_week"), (ADAPTED, UNKNOWN), (ADAPTED, SCRATCH))
    columns = [
        Column("asset"),
        Column("seed", count),
        *(Column(name.replace("_", " "), bits) for name in names),
    ]
    for name, other in pairs:
        columns += [
            Column(f"{name} over {other.replace('_', ' ')}", signed),
            Column("95% interval", interval),
        ]
    rows: list[list[Any]] = []
    for record in records:
        scored = record["scored"][split]
        gains = [scored["gains"][name][other] for name, other in pairs]
        cells = [value for gain in gains for value in (gain["gain_bits"], gain["interval"])]
        rows.append(
            [record["asset"], record["seed"], *(scored["bits"][name] for name in names), *cells]
        )
    means = [sum(row[place] for row in rows) / len(rows) for place in range(2, 2 + len(names))]
    at = dict(zip(names, means, strict=True))
    rows.insert(
        0,
        [
            "mean",
            None,
            *means,
            *(cell for name, other in pairs for cell in (at[other] - at[name], "")),
        ],
    )
    return Table(SPLITS[split], columns, rows)


if __name__ == "__main__":
    with user_errors("reproduction.transfer"):
        main()
