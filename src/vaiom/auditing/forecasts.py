"""The ledger of a service's forecasts: checked for order, made again from model and bars, and
scored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
_TOLERANCE = 1e-4  # of a probability, between machines and precisions

Key = tuple[str, datetime]


@claim("ledger", "every forecast was on record before its bar, and model and bars make it again")
def prove_ledger(proof: Proof, file: Path, run: Path, bars: Path) -> None:
    if not file.is_file():
        raise DataError("no such ledger", where=file, fix="`vaiom serve --ledger` writes one")
    run = find_run(run)
    model = ModelPredictor.load(run if run.is_file() else Run(run).best, "cpu")
    tokenizer, origin = model.checkpoint.tokenizer, model.checkpoint.provenance
    config = CorpusConfig(
        timeframe=tokenizer.timeframe, splits=SplitConfig.from_json(origin.splits)
    )
    reads_others = bool({*CROSS_FIELDS} & {*model.checkpoint.config.input_fields})
    record = _read_in_order(proof, file, model.checkpoint.sha256, reads_others)
    corpus = corpus_in_memory(bars, config, tokenizer=tokenizer)
    symbols, stamps = (
        np.array([key[0] for key in record.made], np.str_),
        [key[1] for key in record.made],
    )
    places = find_rows(corpus, corpus.timestamps, symbols, np.array(stamps, "datetime64[us]"))
    keys = {int(row): key for row, key in zip(places, record.made, strict=True) if row >= 0}
    gone = len(record.made.keys() - keys.values() - record.withdrawn)
    proof.check(not gone, f"{gone} forecasts are of bars that the folder does not have")
    rows = np.array(sorted(keys), np.int64)
    # A forecast can be made again with full history, and with the bars of all assets that it had.
    history = np.concatenate(
        [np.arange(part.stop - part.start) for part in corpus.asset_slices.values()]
    )
    known = history[rows] >= model.checkpoint.config.history - 1
    complete = np.array(
        [not (reads_others and record.made[keys[row]].missing_assets) for row in sorted(keys)], bool
    )
    repeatable = rows[known & complete]
    answers, largest, evidence = (
        model.predict_proba(corpus, repeatable) if len(repeatable) else (),
        0.0,
        list[int](),
    )
    for row, probs in zip(repeatable.tolist(), answers, strict=True):
        forecast, sigma = record.made[keys[row]], corpus.sigma20[row]
        difference = float(np.abs(probs - forecast.probs).max())
        same = difference <= _TOLERANCE and abs(forecast.sigma - sigma) <= _TOLERANCE * sigma
        if same:
            largest = max(largest, difference)
            evidence.append(row)
        # From wrong bars, which the service removed, the model may forecast otherwise.
        holds = bool(same) or keys[row] in record.withdrawn
        proof.check(holds, f"{forecast.symbol}, {forecast.as_of}: the model forecasts otherwise")
    proof.notes.append(
        f"{len(evidence)} of {len(rows)} forecasts made again, largest difference {largest:.1e}"
    )
    if unjudged := record.withdrawn - {keys[row] for row in evidence}:
        proof.notes.append(
            f"{len(unjudged)} forecasts followed bars that the service removed: they are not judged"
        )
    entries = {
        row: (record.made[key], record.settled.get(key))
        for row, key in keys.items()
        if key not in unjudged
    }
    _score(proof, model, corpus, entries, evidence)
    ends = {
        key: corpus.target_timestamps[row].astype("datetime64[us]").item()
        for row, key in keys.items()
    }
    num_late = sum(
        record.times[key] > (end + CLOCK_ALLOWANCE).isoformat() for key, end in ends.items() if end
    )
    if num_late:
        proof.notes.append(
            f"{num_late} forecasts were recorded after their bar by the service's own clock"
        )
    proof.notes.append(f"SHA-256 of the ledger: {sha256_file(file)}")


@dataclass
class _Record:
    """What a ledger has of one model."""

    made: dict[Key, Commitment] = field(default_factory=dict)
    """The last forecast before each bar was known."""
    settled: dict[Key, Settlement] = field(default_factory=dict)
    """The bar as recorded: the last, if it was removed and came again."""
    times: dict[Key, str] = field(default_factory=dict)
    """When each forecast was recorded."""
    withdrawn: set[Key] = field(default_factory=set)
    """Forecasts of removed bars, unless they were made again before their own bar was known."""


def _read_in_order(proof: Proof, file: Path, model: str, reads_others: bool) -> _Record:
    record, known, last = _Record(), set[Key](), dict[Key, Commitment]()
    for number, (line, entry) in enumerate(read_ledger(file), start=1):
        if (
            not proof.check(
                entry is not None, f"line {number} is none of those that were written here"
            )
            or not entry
        ):
            continue
        if isinstance(entry, Removal):
            removed = {
                key for key, bar in record.settled.items() if entry.covers(key[0], bar.target_time)
            }
            record.settled = {key: bar for key, bar in record.settled.items() if key not in removed}
            # Where assets read each other, a wrong bar of one was seen by the forecasts of all.
            seen_by = [key for key in record.made if reads_others or key[0] == entry.symbol]
            record.withdrawn |= {key for key in seen_by if key[1] > entry.after}
            continue
        key = (entry.symbol, entry.as_of)
        if isinstance(entry, Commitment):
            last[key] = entry
        elif proof.check(key in record.made, f"line {number}: a bar without a forecast before it"):
            known.add(key)
            if last[key] == record.made[key]:  # or it was made again after its bar had been known
                record.settled[key] = entry
        if (
            isinstance(entry, Commitment) and key not in known
        ):  # what comes after the bar is no forecast
            probs = np.array(entry.probs)
            whole = (
                len(probs) == NUM_RETURN_BUCKETS
                and (probs >= 0).all()
                and abs(probs.sum() - 1) <= _TOLERANCE
            )
            if proof.check(
                bool(whole), f"line {number}: no distribution over {NUM_RETURN_BUCKETS} buckets"
            ):
                record.made[key], record.times[key] = entry, str(json.loads(line)["time"])
                record.withdrawn.discard(key)
    own = {key: entry for key, entry in record.made.items() if entry.model == model}
    proof.check(bool(own), f"no forecast of this model, {model[:16]}")
    if len(own) < len(record.made):
        proof.notes.append(
            f"{len(record.made) - len(own)} forecasts of other models are not judged"
        )
    record.made, record.withdrawn = own, record.withdrawn & own.keys()
    return record


def _score(
    proof: Proof,
    model: ModelPredictor,
    corpus: Corpus,
    entries: dict[int, tuple[Commitment, Settlement | None]],
    evidence: list[int],
) -> None:
    """Score by the bars of the folder, not by those that the ledger names; rows of evidence were
    forecast again.
    """
    rows = np.array(sorted(entries), np.int64)
    valid = corpus.valid_base[rows] & (corpus.target_return[rows] != INVALID)
    own, judged = np.full(len(rows), np.nan), valid & np.isin(rows, evidence)
    if not judged.any():
        return
    forecasts, settled = zip(*(entries[row] for row in rows.tolist()), strict=True)
    own[valid] = event_bits(
        np.array([each.probs for each in forecasts])[valid], corpus.target_return[rows[valid]]
    )
    scored, bits = rows[judged], own[judged]
    for ours, end, bar in zip(own, corpus.target_timestamps[rows], settled, strict=True):
        if bar:
            recorded = np.nan if bar.model_bits is None else bar.model_bits
            same = np.isclose(recorded, ours, rtol=0, atol=_TOLERANCE, equal_nan=True)
            proof.check(
                bool(same),
                f"{bar.symbol}, {bar.target_time}: settled with other bits than the bar gives",
            )
            proof.check(
                np.datetime64(bar.target_time) == end,
                f"{bar.symbol}, {end}: settled as {bar.target_time}",
            )
    stamps, context = corpus.target_timestamps[scored].tolist(), model.checkpoint.config.history
    if not len(corpus.endpoints(TRAIN, context)):
        proof.notes.append("no Train events in these bars: without baselines there is no e-value")
        return
    others = losses_of([baseline(name) for name in BASELINES], corpus, scored, context)
    for name, theirs in others.items():
        words = (
            f"{(theirs - bits).mean():+.4f} bits a bar over {len(bits)} bars of "
            f"{len(set(stamps))} stamps"
        )
        proof.notes.append(
            f"against {name}: {words}, e = {e_value(stamps, bits.tolist(), theirs.tolist()):.3g}"
        )
