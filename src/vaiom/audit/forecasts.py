"""The ledger of a service's forecasts: checked for order, made again from model and bars, and scored."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np

from vaiom.audit.proof import Proof, claim
from vaiom.baselines.base import Rows, baseline
from vaiom.errors import DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits, find_rows, losses_of
from vaiom.events.build import CorpusConfig, corpus_in_memory
from vaiom.events.corpus import Corpus
from vaiom.events.fields import INVALID, NUM_RETURN_BUCKETS
from vaiom.events.splits import SplitConfig
from vaiom.files import sha256_file
from vaiom.forecast.bars import CLOCK_ALLOWANCE
from vaiom.forecast.ledger import Commitment, Settlement, e_value, read_ledger
from vaiom.run import Run, find_run

BASELINES = ("frequency", "hour_of_week")
_TOLERANCE = 1e-4  # of a probability, between machines and precisions

Key = tuple[str, datetime]
Entries = list[tuple[Commitment, Settlement | None]]


@claim("ledger", "every forecast was on record before its bar, and model and bars make it again")
def prove_ledger(proof: Proof, file: Path, run: Path, bars: Path) -> None:
    if not file.is_file():
        raise DataError("no such ledger", where=file, fix="`vaiom serve --ledger` writes one")
    run = find_run(run)
    model = ModelPredictor.load(run if run.is_file() else Run(run).best, "cpu")
    tokenizer, origin = model.checkpoint.tokenizer, model.checkpoint.provenance
    config = CorpusConfig(timeframe=tokenizer.timeframe, splits=SplitConfig.from_json(origin.splits))
    forecasts, settled, times = _read_in_order(proof, file, model.checkpoint.sha256)
    corpus = corpus_in_memory(bars, config, tokenizer=tokenizer)
    symbols, stamps = np.array([key[0] for key in forecasts], np.str_), [key[1] for key in forecasts]
    places = find_rows(corpus, corpus.timestamps, symbols, np.array(stamps, "datetime64[us]"))
    keys = {int(row): key for row, key in zip(places, forecasts, strict=True) if row >= 0}
    absent = f"{len(forecasts) - len(keys)} forecasts are of bars that the folder does not have"
    proof.check(len(keys) == len(forecasts), absent)
    rows = np.array(sorted(keys), np.int64)
    entries = [(forecasts[keys[row]], settled.get(keys[row])) for row in sorted(keys)]
    # A forecast can be made again with full history, and with the bars of all assets that it had.
    history = np.concatenate([np.arange(part.stop - part.start) for part in corpus.asset_slices.values()])
    known = history[rows] >= model.checkpoint.config.history - 1
    repeated = [index for index, (forecast, _) in enumerate(entries) if known[index] and not forecast.missing_assets]
    answers, largest = model.predict_proba(corpus, rows[repeated]) if repeated else (), 0.0
    for index, probs in zip(repeated, answers, strict=True):
        forecast, sigma = entries[index][0], corpus.sigma20[rows[index]]
        difference = float(np.abs(probs - forecast.probs).max())
        largest = max(largest, difference)
        same = difference <= _TOLERANCE and abs(forecast.sigma - sigma) <= _TOLERANCE * sigma
        proof.check(bool(same), f"{forecast.symbol}, {forecast.as_of}: the model forecasts otherwise")
    proof.notes.append(f"{len(repeated)} of {len(rows)} forecasts made again, largest difference {largest:.1e}")
    _score(proof, model, corpus, rows, entries, repeated)
    ends = {key: corpus.target_timestamps[row].astype("datetime64[us]").item() for row, key in keys.items()}
    ends |= {key: bar.target_time for key, bar in settled.items() if key in keys.values()}
    num_late = sum(times[key] > (end + CLOCK_ALLOWANCE).isoformat() for key, end in ends.items() if end)
    if num_late:
        proof.notes.append(f"{num_late} forecasts were recorded after their bar by the service's own clock")
    proof.notes.append(f"SHA-256 of the ledger: {sha256_file(file)}")


def _read_in_order(
    proof: Proof, file: Path, model: str
) -> tuple[dict[Key, Commitment], dict[Key, Settlement], dict[Key, str]]:
    """The last forecast before each bar, the bar as recorded, and when each forecast was recorded."""
    commitments: dict[Key, Commitment] = {}
    settled: dict[Key, Settlement] = {}
    times: dict[Key, str] = {}
    for number, (line, entry) in enumerate(read_ledger(file), start=1):
        if not proof.check(entry is not None, f"line {number} is none of those that were written here") or not entry:
            continue
        key = (entry.symbol, entry.as_of)
        if isinstance(entry, Settlement):
            if proof.check(key in commitments, f"line {number}: a bar without a forecast before it"):
                settled[key] = entry  # the last: a wrong bar may have been removed and come again
        elif key not in settled:  # what comes after the bar is no forecast
            probs = np.array(entry.probs)
            whole = len(probs) == NUM_RETURN_BUCKETS and (probs >= 0).all() and abs(probs.sum() - 1) <= _TOLERANCE
            if proof.check(bool(whole), f"line {number}: no distribution over {NUM_RETURN_BUCKETS} buckets"):
                commitments[key], times[key] = entry, str(json.loads(line)["time"])
    own = {key: entry for key, entry in commitments.items() if entry.model == model}
    proof.check(bool(own), f"no forecast of this model, {model[:16]}")
    if len(own) < len(commitments):
        proof.notes.append(f"{len(commitments) - len(own)} forecasts of other models are not judged")
    return own, settled, times


def _score(
    proof: Proof, model: ModelPredictor, corpus: Corpus, rows: Rows, entries: Entries, repeated: list[int]
) -> None:
    """Score by the bars of the folder, not by those that the ledger names; only repeated forecasts are evidence."""
    valid = corpus.valid_base[rows] & (corpus.target_return[rows] != INVALID)
    own, judged = np.full(len(rows), np.nan), valid & np.isin(np.arange(len(rows)), repeated)
    if not judged.any():
        return
    probs = np.array([forecast.probs for forecast, _ in entries])[valid]
    own[valid] = event_bits(probs, corpus.target_return[rows[valid]])
    scored, bits = rows[judged], own[judged]
    for ours, (_, bar) in zip(own, entries, strict=True):
        if bar:
            recorded = np.nan if bar.model_bits is None else bar.model_bits
            same = np.isclose(recorded, ours, rtol=0, atol=_TOLERANCE, equal_nan=True)
            proof.check(bool(same), f"{bar.symbol}, {bar.target_time}: settled with other bits than the bar gives")
    stamps = corpus.target_timestamps[scored].tolist()
    others = losses_of([baseline(name) for name in BASELINES], corpus, scored, model.checkpoint.config.history)
    for name, theirs in others.items():
        words = f"{(theirs - bits).mean():+.4f} bits a bar over {len(bits)} bars of {len(set(stamps))} stamps"
        proof.notes.append(f"against {name}: {words}, e = {e_value(stamps, bits.tolist(), theirs.tolist()):.3g}")
