"""The temporary folder in which a run is evaluated again, and the inputs that lie in it.

An `AuditedRun` enters. The folder holds a copy of the ledger, so that no access to a test is
recorded, and the stored losses of baselines, after they were compared with their fits.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.compare import compare_losses
from vaiom.auditing.proof import Proof
from vaiom.auditing.rounding import BASELINE_BITS
from vaiom.baselines.base import Floats, Rows
from vaiom.baselines.stored_losses import FITS_FOLDER, save_losses
from vaiom.corpus.manifest import LEDGER_NAME
from vaiom.corpus.splits import SEALED
from vaiom.corpus.store import Corpus
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import ScoredEvents, event_bits
from vaiom.model.checkpoint import Checkpoint


class StoredForecasts(ModelPredictor):
    """The model, which answers for the events of a split with the forecasts stored beside them.

    Figures that follow from these forecasts are then the same to the last digit on any machine.
    """

    def __init__(self, checkpoint: Checkpoint, rows: Rows, probs: Floats) -> None:
        super().__init__(checkpoint, "cpu")
        self.rows = rows
        """(n,) of the events, in the order of the corpus."""
        self.probs = probs
        """(n, 16) as they are stored."""

    def compute(self, corpus: Corpus, rows: Rows) -> None:
        """Where each event needs a window of its own, nothing is computed that is stored."""
        if self.checkpoint.config.attention_window:
            super().compute(corpus, rows)

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """The stored forecasts of the split's events, the model's own of all other rows."""
        if np.array_equal(rows, self.rows):
            return self.probs
        return super().predict_proba(corpus, rows)

    def own_forecasts(self, corpus: Corpus, rows: Rows) -> Floats:
        """What the model forecasts after these rows, whatever is stored."""
        return super().predict_proba(corpus, rows)


@dataclass(frozen=True)
class Workspace:
    """A run, and where it is evaluated again."""

    proof: Proof
    run: AuditedRun
    folder: Path
    """The temporary folder."""
    corpus: Corpus
    """The run's corpus, whose ledger is a copy."""
    out: Path
    """The run as it is evaluated again."""

    @classmethod
    def inside(cls, folder: Path, proof: Proof, run: AuditedRun) -> Workspace:
        """A workspace in an empty folder."""
        assert run.corpus.path is not None
        ledger = run.corpus.path / LEDGER_NAME
        copied = folder / "corpus"
        copied.mkdir()
        if ledger.is_file():
            shutil.copyfile(ledger, copied / LEDGER_NAME)
        # Losses name the run by its folder.
        out = folder / "runs" / run.files.path.resolve().name
        return cls(proof, run, folder, replace(run.corpus, path=copied), out)

    def rows_of(self, split: str) -> Rows:
        """Row numbers of all events of a split."""
        return self.corpus.endpoints(split, self.run.history, unseal=True)

    def store_losses(
        self,
        where: str,
        split: str,
        rows: Rows,
        events: ScoredEvents,
        baselines: str | None,
        without: Collection[str],
    ) -> Path:
        """Compare losses of baselines with their fits, and store them as evaluations read them.

        `events` are those at `rows` of a split, `where` names them in findings, `baselines` is the
        folder of fits that the evaluation names, and `without` are predictors that are none.
        Returns the folder of losses.
        """
        stored = Path(baselines) if baselines else None
        whole = self.rows_of(split)
        losses = {}
        for name, bits in events.bits.items():
            if name not in without:
                self._compare_baseline(where, name, rows, events, stored)
                # Losses of events that are not scored here are never read.
                losses[name] = np.zeros(len(whole))
                losses[name][np.searchsorted(whole, rows)] = bits
        folder = self.folder / "losses" / where
        folder.mkdir(parents=True)
        if losses:
            save_losses(folder, self.corpus, split, losses, self.run.history)
        if stored and (stored / FITS_FOLDER).is_dir():
            fits = (stored / FITS_FOLDER).resolve()
            (folder / FITS_FOLDER).symlink_to(fits, target_is_directory=True)
        return folder

    def _compare_baseline(
        self, where: str, name: str, rows: Rows, events: ScoredEvents, fits: Path | None
    ) -> None:
        """The stored losses are those of the baseline fitted again, or of its stored fit."""
        proof = self.proof
        what = f"{where}: {name}"
        fitted = self.run.fitted(name, fits)
        if fitted is None:
            proof.note(f"{what} was not computed again (--baselines fits those that are named)")
            return
        if name not in self.run.config.baselines:
            proof.note(f"{what} by its stored fit, not fitted again (--baselines {name} does)")
        bits = event_bits(fitted.predict_proba(self.corpus, rows), events.buckets)
        compare_losses(proof, what, bits - events.bits[name], BASELINE_BITS)


def unseal_of(split: str) -> str | None:
    """The name that opens a split, if it is the sealed one."""
    return SEALED if split == SEALED else None
