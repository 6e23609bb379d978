"""The model card: what a model is, what it was made from, how it scored, what it is not for.

Enters: a run folder or a model file; evaluations that lie in the folder. Leaves: Markdown, every figure of which the
model or its evaluations say.
"""

from __future__ import annotations

from pathlib import Path

from vaiom.evaluation.evaluate import Evaluation
from vaiom.model.checkpoint import USE, Checkpoint, load_model
from vaiom.model.config import Vocabulary
from vaiom.model.vaiom import count_parameters
from vaiom.report.results import notes_of, tables_of
from vaiom.report.tables import Table, bits, count, facts
from vaiom.run import EVIDENCE_SUFFIX, Run, packaged_models

_PARTS = ("headline", "groups", "calibration", "horizons", "joint")
_USE = """\
**Use.** The distribution of the next bar's log return of one asset, given that it is not zero: quantiles, value at
risk, expected shortfall, the chance of a move. Bars must be on the clock and of the timeframe of Train.

**Misuse.** It says nothing of costs or of profit. An asset that it was not trained on is treated as an average one.
Bars of another provider have other ranges and volumes.

**Licence.** The weights are licensed as the package is. They hold no bars; the licences of the sources cover the bars.
"""


def render_card(run: Path) -> str:
    """The page of a run's model or of a model file; a packaged model for use has the figures of its evidence."""
    checkpoint = load_model(run)
    name = run.stem if run.is_file() else run.name
    judged = packaged_models().get(f"{name}{EVIDENCE_SUFFIX}", run) if checkpoint.provenance.purpose == USE else run
    splits = [] if judged.is_file() else Run(judged).evaluated_splits()
    found = [Evaluation.read(judged, split, load_model(judged).sha256) for split in splits]
    tables = [_origin(checkpoint), _bars(checkpoint)]
    for each in found:
        of_split = tables_of(each, each.split)
        tables += [table for part in _PARTS for table in of_split[part]]
    notes = [f"{each.split}: {note}" for each in found for note in notes_of(each)]
    if judged != run:
        notes.insert(0, f"The figures are those of `{judged.name}`: the same settings, trained and selected on less.")
    notes += ["No evaluation lies beside the model: no figure is claimed."] * (not found)
    parts = [f"# {name}\n", _USE, "## What limits the figures\n", *(f"- {note}" for note in notes), ""]
    for table in tables:
        parts += [f"## {table.caption}\n", table.to_markdown().split("\n\n", 1)[1]]
    return "\n".join(parts)


def _origin(checkpoint: Checkpoint) -> Table:
    origin, config = checkpoint.provenance, checkpoint.config
    train = origin.train
    selected = "" if origin.validation_bits is None else f", {bits(origin.validation_bits)} bits on Validation"
    return facts(
        "What it is",
        {
            "experiment": f"{origin.experiment}, seed {origin.seed}, step {count(origin.step)}{selected}",
            "purpose": "for use: nothing is left to judge it on" if origin.purpose == USE else "evidence",
            "parameters": count(count_parameters(config, Vocabulary.of(checkpoint.tokenizer))),
            "reads": f"{len(config.input_fields)} fields of the last {count(config.receptive_field)} bars",
            "bars": checkpoint.tokenizer.timeframe,
            "Train": f"targets before {origin.splits['train_end'][:10]}",
            "Validation": " to ".join(moment[:10] for moment in origin.splits["validation"]),
            "training": f"{count(train['steps'])} steps of {count(train['micro_batch'] * train['num_micro_batches'])} "
            f"windows, after {train.get('teachers', 0)} teachers of the same length",
            "made by": f"vaiom {origin.vaiom_version}",
            "weights": f"sha256 {checkpoint.sha256}",
            "corpus": f"sha256 {origin.corpus_sha256}",
            "tokenizer": f"sha256 {checkpoint.tokenizer.sha256}",
        },
    )


def _bars(checkpoint: Checkpoint) -> Table:
    return facts(
        "Bars that it was made from",
        {
            each["symbol"]: f"{count(each['rows_taken'])} rows, sha256 {each['sha256']}"
            for each in checkpoint.provenance.inputs
        },
    )
