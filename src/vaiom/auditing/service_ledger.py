"""The proof of a service's ledger: each forecast stood there before its bar, and is made again.

A ledger file, a model and the bars that the service had enter; a proof leaves. Its notes score the
forecasts by the bars of the folder, not by those that the ledger names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from vaiom.auditing.proof import Proof, claim
from vaiom.baselines.base import baseline
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import TRAIN, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits, find_rows, losses_of
from vaiom.features.fields import CROSS_FIELDS, INVALID, NUM_RETURN_BUCKETS
from vaiom.files import sha256_file
from vaiom.forecast.bars import CLOCK_ALLOWANCE
from vaiom.forecast.ledger import Commitment, Removal, Settlement, e_value, read_ledger
from vaiom.run import Run, find_run

BASELINES = ("frequency", "hour_of_week")
"""What the forecasts are scored against."""
TOLERANCE = 1e-4
"""Of a probability, and of a scale relative to itself, between machines and precisions."""

Key = tuple[str, datetime]
"""Symbol and time of a forecast."""


@dataclass
class OnRecord:
    """A forecast that was on record before its bar was known."""

    made: Commitment
    time: str
    """When it was recorded, by the service's clock."""
    settled: Settlement | None = None
    """The bar that followed, as recorded; none if it was removed."""
    withdrawn: bool = False
    """Whether bars that it was made from were removed, and it was not made again in time."""
    row: int = -1
    """Its row in the corpus of the bars; -1 if they do not have it."""
    repeated: bool = False
    """Whether the model gives it again."""


@claim("ledger", "every forecast was on record before its bar, and model and bars make it again")
def prove_ledger(proof: Proof, file: Path, run: Path, bars: Path) -> None:
    """Read a ledger in order, make its forecasts again, and score them against baselines.

    Of each bar the last forecast before it was known counts. Gains are noted in bits a bar with an
    e-value (Choe and Ramdas, "Comparing Sequential Forecasters"): under no gain it exceeds 20 with
    probability 1/20 at most, however often one looks.
    """
    if not file.is_file():
        raise DataError("no such ledger", where=file, fix="`vaiom serve --ledger` writes one")
    run = find_run(run)
    model = ModelPredictor.load(run if run.is_file() else Run(run).best, "cpu")
    checkpoint = model.checkpoint
    reads_others = bool(set(CROSS_FIELDS) & set(checkpoint.config.input_fields))
    forecasts = _read_in_order(proof, file, checkpoint.sha256, reads_others)
    config = CorpusConfig(
        timeframe=checkpoint.tokenizer.timeframe,
        splits=SplitConfig.from_json(checkpoint.provenance.splits),
    )
    corpus = corpus_in_memory(bars, config, tokenizer=checkpoint.tokenizer)
    known = _find_rows(proof, corpus, forecasts)
    _make_again(proof, model, corpus, known, reads_others)
    # From wrong bars, which the service removed, the model may have forecast otherwise.
    judged = [each for each in known if each.repeated or not each.withdrawn]
    unjudged = sum(each.withdrawn and not each.repeated for each in forecasts)
    if unjudged:
        proof.note(
            f"{unjudged} forecasts followed bars that the service removed: they are not judged"
        )
    _score(proof, model, corpus, judged)
    _note_late(proof, corpus, known)
    proof.note(f"SHA-256 of the ledger: {sha256_file(file)}")


def _read_in_order(proof: Proof, file: Path, model: str, reads_others: bool) -> list[OnRecord]:
    """The last forecast of a model before each bar was known, in the order of the ledger.

    A line that was not written by a service, a bar without a forecast before it, and probabilities
    that are none are findings.
    """
    record: dict[Key, OnRecord] = {}
    newest: dict[Key, Commitment] = {}
    known: set[Key] = set()
    for number, (line, entry) in enumerate(read_ledger(file), start=1):
        written_here = entry is not None
        proof.check(written_here, f"line {number} is none of those that were written here")
        if isinstance(entry, Removal):
            _withdraw(record, entry, reads_others)
        elif isinstance(entry, Commitment):
            key = (entry.symbol, entry.as_of)
            newest[key] = entry
            if key not in known:  # what comes after the bar is no forecast
                problem = f"line {number}: no distribution over {NUM_RETURN_BUCKETS} buckets"
                if proof.check(_is_distribution(entry.probs), problem):
                    record[key] = OnRecord(entry, str(json.loads(line)["time"]))
        elif isinstance(entry, Settlement):
            key = (entry.symbol, entry.as_of)
            problem = f"line {number}: a bar without a forecast before it"
            if proof.check(key in record, problem):
                known.add(key)
                # It is not of this bar if it was made again after the bar had been known.
                if newest[key] == record[key].made:
                    record[key].settled = entry
    own = [each for each in record.values() if each.made.model == model]
    proof.check(bool(own), f"no forecast of this model, {model[:16]}")
    others = len(record) - len(own)
    if others:
        proof.note(f"{others} forecasts of other models are not judged")
    return own


def _is_distribution(probs: Sequence[float]) -> bool:
    """Whether these are probabilities of all buckets, with a sum near one."""
    values = np.array(probs)
    if len(values) != NUM_RETURN_BUCKETS or (values < 0).any():
        return False
    return bool(abs(values.sum() - 1) <= TOLERANCE)


def _withdraw(record: dict[Key, OnRecord], removal: Removal, reads_others: bool) -> None:
    """Take back what rests on removed bars."""
    for (symbol, as_of), each in record.items():
        if each.settled and removal.covers(symbol, each.settled.target_time):
            each.settled = None
        # Where assets read each other, a wrong bar of one was seen by the forecasts of all.
        if as_of > removal.after and (reads_others or symbol == removal.symbol):
            each.withdrawn = True


def _find_rows(proof: Proof, corpus: Corpus, forecasts: Sequence[OnRecord]) -> list[OnRecord]:
    """The forecasts whose bars are there, in the order of the corpus."""
    symbols = np.array([each.made.symbol for each in forecasts], np.str_)
    stamps = np.array([each.made.as_of for each in forecasts], "datetime64[us]")
    rows = find_rows(corpus, corpus.timestamps, symbols, stamps)
    for each, row in zip(forecasts, rows.tolist(), strict=True):
        each.row = row
    gone = sum(each.row < 0 and not each.withdrawn for each in forecasts)
    proof.check(not gone, f"{gone} forecasts are of bars that the folder does not have")
    known = [each for each in forecasts if each.row >= 0]
    return sorted(known, key=lambda each: each.row)


def _make_again(
    proof: Proof,
    model: ModelPredictor,
    corpus: Corpus,
    forecasts: Sequence[OnRecord],
    reads_others: bool,
) -> None:
    """Compare forecasts with what the model gives now, and mark those that it gives again.

    That needs the whole history of a forecast, and the bars of all assets that it had.
    """
    needed = model.checkpoint.config.history - 1
    repeatable = []
    for each in forecasts:
        first = corpus.asset_slices[each.made.symbol].start
        complete = not (reads_others and each.made.missing_assets)
        if complete and each.row - first >= needed:
            repeatable.append(each)
    rows = np.array([each.row for each in repeatable], np.int64)
    answers = model.predict_proba(corpus, rows) if len(rows) else np.empty((0, NUM_RETURN_BUCKETS))
    largest = 0.0
    for each, probs in zip(repeatable, answers, strict=True):
        made = each.made
        sigma = corpus.sigma20[each.row]
        difference = float(np.abs(probs - made.probs).max())
        same_sigma = abs(made.sigma - sigma) <= TOLERANCE * sigma
        each.repeated = bool(difference <= TOLERANCE and same_sigma)
        if each.repeated:
            largest = max(largest, difference)
        problem = f"{made.symbol}, {made.as_of}: the model forecasts otherwise"
        proof.check(each.repeated or each.withdrawn, problem)
    again = sum(each.repeated for each in repeatable)
    proof.note(
        f"{again} of {len(forecasts)} forecasts made again, largest difference {largest:.1e}"
    )


def _score(
    proof: Proof, model: ModelPredictor, corpus: Corpus, forecasts: Sequence[OnRecord]
) -> None:
    """Compare settlements with the bars; note the gain over baselines of what was made again.

    Bits of forecasts that the model does not give again are no evidence, and not scored.
    """
    rows = np.array([each.row for each in forecasts], np.int64)
    valid = corpus.valid_base[rows] & (corpus.target_return[rows] != INVALID)
    scored = valid & np.array([each.repeated for each in forecasts], bool)
    if not scored.any():
        return
    probs = np.array([each.made.probs for each in forecasts])
    bits = np.full(len(rows), np.nan)
    bits[valid] = event_bits(probs[valid], corpus.target_return[rows[valid]])
    for each, ours in zip(forecasts, bits, strict=True):
        if each.settled:
            _check_settlement(proof, corpus, each.settled, each.row, ours)
    history = model.checkpoint.config.history
    if not len(corpus.endpoints(TRAIN, history)):
        proof.note("no Train events in these bars: without baselines there is no e-value")
        return
    own = bits[scored]
    stamps = corpus.target_timestamps[rows[scored]].tolist()
    others = losses_of([baseline(name) for name in BASELINES], corpus, rows[scored], history)
    size = f"{len(own)} bars of {len(set(stamps))} stamps"
    for name, theirs in others.items():
        gain = f"{(theirs - own).mean():+.4f} bits a bar over {size}"
        evidence = e_value(stamps, own.tolist(), theirs.tolist())
        proof.note(f"against {name}: {gain}, e = {evidence:.3g}")


def _check_settlement(
    proof: Proof, corpus: Corpus, settled: Settlement, row: int, bits: float
) -> None:
    """The recorded bits are those that the bar gives, and the bar is the next one."""
    end = corpus.target_timestamps[row]
    recorded = np.nan if settled.model_bits is None else settled.model_bits
    same = bool(np.isclose(recorded, bits, rtol=0, atol=TOLERANCE, equal_nan=True))
    where = f"{settled.symbol}, {settled.target_time}"
    proof.check(same, f"{where}: settled with other bits than the bar gives")
    problem = f"{settled.symbol}, {end}: settled as {settled.target_time}"
    proof.check(bool(np.datetime64(settled.target_time) == end), problem)


def _note_late(proof: Proof, corpus: Corpus, forecasts: Sequence[OnRecord]) -> None:
    """How many forecasts were recorded after their bar had begun, by the service's own clock."""
    late = 0
    ends = corpus.target_timestamps.astype("datetime64[us]")
    for each in forecasts:
        end = ends[each.row].item()
        if end and each.time > (end + CLOCK_ALLOWANCE).isoformat():
            late += 1
    if late:
        proof.note(f"{late} forecasts were recorded after their bar by the service's own clock")
