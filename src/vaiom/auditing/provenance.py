"""Proofs of (f) provenance and of the rebuild: every file names the one before it, from bars to
figures, and the bars give the corpus again.

A corpus, its bars and a run enter, proofs leave.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.chronology import valid_targets
from vaiom.auditing.proof import Proof, claim
from vaiom.corpus.split_quality import count_events
from vaiom.corpus.store import Corpus
from vaiom.errors import UserError
from vaiom.evaluation.scores import difference_of, read_events, score_events
from vaiom.files import sha256_file
from vaiom.model.checkpoint import USE, load_checkpoint
from vaiom.run import BEST_NAME, CONFIG_NAME, Run
from vaiom.training.experiment import changed, experiment_of_checkpoint, experiment_of_run
from vaiom.training.start import require_start
from vaiom.training.teachers import teachers_of

if TYPE_CHECKING:
    from vaiom.corpus.build import CorpusConfig

PRECISIONS = ("float32", "float16", "bfloat16")
"""In which a run may have been scored."""


@claim(
    "f. provenance",
    "hashes from bars to manifest, arrays, tokenizer, checkpoint, evaluation; every valid target "
    "is an event",
)
def prove_provenance(
    proof: Proof, corpus: Corpus, bars: Path | None = None, run: AuditedRun | None = None
) -> None:
    """Follow the hashes from the bars to the evaluations; each file must be of the one before.

    Bars name no other file, the manifest names the bars, the checkpoint the manifest, its tokenizer
    and its splits, and an evaluation the checkpoint. Without bars, and for a corpus without a run,
    the rest of the chain is followed.
    """
    _check_manifest(proof, corpus)
    if bars is None:
        proof.note("the bars' own hashes need --bars")
    else:
        _check_bars(proof, corpus, bars)
    if run is not None:
        _check_checkpoint(proof, run)
        if run.corpus is not corpus and run.checkpoint.provenance.purpose != USE:
            proof.note("the run has other split boundaries than its corpus was built with")
        _check_ancestors(proof, run)
        for split, stored in run.evaluations().items():
            _check_evaluation(proof, run, split, stored)


def _check_manifest(proof: Proof, corpus: Corpus) -> None:
    """The manifest lists what the corpus holds: its edges, its events, the rows of each input."""
    # Opening the corpus compared each of its files with the manifest.
    proof.count += len(corpus.columns)
    events = count_events(corpus)
    told = {
        "edges": corpus.tokenizer.to_json()["inner_edges"],
        "events": {name: sum(counts.values()) for name, counts in events.items()},
    }
    for name, value in told.items():
        proof.check(corpus.manifest[name] == value, f"the manifest lists other {name}")
    taken = Counter[str]()
    for entry in corpus.manifest["inputs"]:
        taken[entry["symbol"]] += entry["rows_taken"]
    sizes = {symbol: rows.stop - rows.start for symbol, rows in corpus.asset_slices.items()}
    proof.check(taken == sizes, "the manifest lists inputs of other rows")
    like = corpus.manifest.get("like")
    if like:
        proof.note(
            f"its buckets are of a model, {like[:16]}: what they were fitted on is not shown here"
        )


def _check_bars(proof: Proof, corpus: Corpus, bars: Path) -> None:
    """Each file of bars is one that the corpus was built from."""
    from vaiom.market.folder import symbols_in

    recorded: dict[str, set[str]] = {}
    for entry in corpus.manifest["inputs"]:
        recorded.setdefault(entry["symbol"], set()).add(entry["sha256"])
    present = symbols_in(bars)
    for symbol in sorted({*present, *recorded}):
        file = bars / f"{symbol}.parquet"
        hashes = recorded.get(symbol, set())
        same = symbol in present
        # Bars that came in several files may lie in one; the rebuild compares those.
        if same and len(hashes) < 2:
            same = sha256_file(file) in hashes
        proof.check(same, f"{file} is not a file that the corpus was built from")


def _check_checkpoint(proof: Proof, run: AuditedRun) -> None:
    """The checkpoint is of this corpus, or of one that grew into it, and of this configuration."""
    best = run.checkpoint
    origin = best.provenance
    corpus = run.corpus
    same_tokenizer = best.tokenizer.sha256 == corpus.tokenizer.sha256
    proof.check(same_tokenizer, "the checkpoint has another tokenizer")
    grown = origin.inputs == corpus.manifest["inputs"][: len(origin.inputs)]
    grown = grown and origin.splits == corpus.splits.to_json()
    problem = (
        "the checkpoint was trained on another corpus, not on this one nor on one that grew into it"
    )
    proof.check(origin.corpus_sha256 == corpus.sha256 or grown, problem)
    in_config = run.files.read_config().get("corpus", {}).get("sha256")
    proof.check(in_config == origin.corpus_sha256, f"{CONFIG_NAME} names another corpus")
    # The hash leaves out what may change when a run is resumed.
    own = experiment_of_checkpoint(best)
    configured = experiment_of_run(run.files.path)
    proof.check(own.sha256 == configured.sha256, f"{CONFIG_NAME} describes another experiment")
    for name, (new, old) in changed(own, configured).items():
        proof.note(
            f"{CONFIG_NAME} says {name} {new}, {BEST_NAME} {old}: as after resuming with other "
            f"settings"
        )


def _check_ancestors(proof: Proof, run: AuditedRun) -> None:
    """What a run started from, and its teachers, have seen nothing that it holds out.

    Weights from a model that was trained, or selected, on later bars would carry them into this
    one. What is no longer there is noted.
    """
    origin = run.checkpoint.provenance
    experiment = experiment_of_checkpoint(run.checkpoint)
    name = run.files.start.name
    if origin.start_sha256 and not run.files.start.is_file():
        proof.note(f"{name}, the weights that it started from, is gone")
    elif origin.start_sha256:
        start = load_checkpoint(run.files.start)
        same = start.sha256 == origin.start_sha256
        proof.check(same, f"{name} is not what it started from")
        try:
            require_start(start, run.corpus, experiment)
        except UserError as error:
            proof.check(False, f"{name}: {error.problem}")
    for number, expected in enumerate(teachers_of(experiment), start=1):
        best = Run(run.files.teachers / str(number)).best
        if not best.is_file():
            proof.note(f"teacher {number} is gone: what it has learned from is not shown")
            continue
        teacher = load_checkpoint(best)
        same = teacher.provenance.splits == origin.splits
        same = same and teacher.provenance.corpus_sha256 == origin.corpus_sha256
        same = same and experiment_of_checkpoint(teacher).sha256 == expected.sha256
        problem = f"teacher {number} is of another corpus, other boundaries or another experiment"
        proof.check(same, problem)


def _check_evaluation(proof: Proof, run: AuditedRun, split: str, stored: dict[str, Any]) -> None:
    """An evaluation is of this corpus, and its events are all valid targets of the split."""
    known = stored["precision"] in (None, *PRECISIONS)
    proof.check(known, f"{split}: scored in an unknown precision, {stored['precision']}")
    corpora = (run.corpus.sha256, run.checkpoint.provenance.corpus_sha256)
    same = stored["corpus_sha256"] in corpora
    proof.check(same, f"{split}: evaluated on another corpus")
    rows = valid_targets(run.corpus, split, run.history)
    events = read_events(run.files.path, split)
    difference = difference_of(score_events(run.corpus, rows, {}), events)
    problem = (
        f"{split}: the events file does not hold every valid target of the split: {difference}"
    )
    proof.check(difference is None, problem, len(rows))


def config_of(corpus: Corpus) -> CorpusConfig:
    """The options that a corpus was built with."""
    from vaiom.corpus.build import CorpusConfig

    tokenizer = corpus.tokenizer
    classes = dict(zip(tokenizer.symbols, tokenizer.classes, strict=True))
    return CorpusConfig(
        timeframe=tokenizer.timeframe, splits=corpus.splits, classes=classes, like=corpus.like
    )


@claim(
    "rebuild",
    "building the corpus again from these bars gives its hash, and the examined pipeline its "
    "columns",
)
def prove_rebuild(proof: Proof, corpus: Corpus, seen: Corpus, folder: Path, built: Corpus) -> None:
    """Build the corpus again in a temporary folder, and compare what the pipeline built.

    `corpus` is the stored one, `seen` the same under the boundaries of a run, and `built` what the
    pipeline of the other proofs made of the bars.
    """
    from vaiom.corpus.build import build_corpus

    with tempfile.TemporaryDirectory() as name:
        again = build_corpus(folder, Path(name) / "corpus", config_of(corpus))
        # An older corpus may lack columns that this version adds.
        arrays = {each: again.manifest["arrays"][each] for each in corpus.manifest["arrays"]}
        again = replace(again, manifest={**again.manifest, "arrays": arrays})
        proof.check(again.sha256 == corpus.sha256, f"the bars of {folder} give another corpus")
    for name, ours in seen.columns.items():
        theirs = built.columns.get(name)
        same = theirs is not None and np.array_equal(theirs, ours, equal_nan=True)
        proof.check(same, f"the examined pipeline gives another {name}", len(ours))
