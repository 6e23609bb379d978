"""Runs put beside each other: one against another, event by event, and several as one, by their mean probabilities.

Enters: run folders that were scored on a split. Leaves: bits and paired gains. A look of the ensemble at a test split
is recorded like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vaiom.evaluation.evaluate import compare
from vaiom.evaluation.events_file import MODEL, read_events, require_same_events
from vaiom.evaluation.heldout import heldout_rows
from vaiom.evaluation.ledger import is_recorded, looks, record_look
from vaiom.evaluation.likelihood import event_bits
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.events.corpus import Corpus
from vaiom.experiments.records import Gain, Scored
from vaiom.files import sha256_of
from vaiom.training.loop import BEST_NAME


def beside(own: Path, other: Path, split: str, name: str) -> Scored:
    """A run against another, which goes by `name`, on exactly the same events."""
    mine, theirs = read_events(own, split), read_events(other, split)
    require_same_events(mine, theirs, where=other)
    events = replace(mine, bits={MODEL: mine.bits[MODEL], name: theirs.bits[MODEL]})
    return Scored(
        bits={each: float(losses.mean()) for each, losses in events.bits.items()},
        gains={each.baseline: Gain.of(each) for each in compare(events)},
    )


def together(runs: Sequence[Path], corpus: Corpus, split: str, device: str) -> Scored:
    """Several runs as one model, beside the rivals that the first was compared with."""
    models = [ModelPredictor.load(run / BEST_NAME, device) for run in runs]
    rows = heldout_rows(corpus, split, models[0].checkpoint)
    events = read_events(runs[0], split)
    counted = is_recorded(corpus, split)
    if counted:
        hashes = "".join(model.checkpoint.sha256 for model in models)
        record_look(corpus, split, run="ensemble", checkpoint_sha256=sha256_of(hashes.encode()), num_events=len(rows))
    probs = np.mean([model.predict_proba(corpus, rows) for model in models], axis=0)
    events = replace(events, bits={**events.bits, MODEL: event_bits(probs, corpus.target_return[rows])})
    return Scored(
        bits={name: float(losses.mean()) for name, losses in events.bits.items()},
        gains={each.baseline: Gain.of(each) for each in compare(events)},
        looks=looks(corpus, split) if counted else None,
    )
