"""Proof (e): evaluated again in a temporary folder, a run gives the files that lie in it.

An `AuditedRun` enters, a proof leaves. Stored forecasts are compared with the model's own, stored
losses of baselines with those of their fits. Then `evaluate_run` makes every figure again from the
stored ones, beside a copy of the ledger, so that no look is recorded. Forecasts of others are
scored again, and the page is written again. Paper: Methods, "Paired Test Uncertainty"; Results,
main Test table.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.fits import check_dependence, check_horizons
from vaiom.auditing.page_again import compare_page
from vaiom.auditing.proof import Proof, claim
from vaiom.auditing.rounding import ABSOLUTE, BASELINE_BITS, RELATIVE, SAME_BITS
from vaiom.baselines.base import Floats, Rows
from vaiom.baselines.stored_losses import FITS_FOLDER, save_losses
from vaiom.codec import to_json
from vaiom.corpus.manifest import LEDGER_NAME
from vaiom.corpus.splits import SEALED
from vaiom.corpus.store import Corpus
from vaiom.distribution.dependence import Dependence
from vaiom.errors import UserError
from vaiom.evaluation.access_ledger import is_recorded, model_accesses
from vaiom.evaluation.evaluate import compare_tests, evaluate_run
from vaiom.evaluation.horizon_scores import events_name, figures_of_horizon
from vaiom.evaluation.predictor import ModelPredictor, heldout_rows
from vaiom.evaluation.record import (
    FORMS,
    RUN_PREFIX,
    Evaluation,
    ForecastScore,
    caveat_of_missing,
)
from vaiom.evaluation.scores import (
    MODEL,
    ScoredEvents,
    difference_of,
    event_bits,
    find_rows,
    read_events,
    score_events,
)
from vaiom.files import read_json
from vaiom.model.checkpoint import USE, Checkpoint
from vaiom.model.horizon_heads import load_horizons
from vaiom.run import Run
from vaiom.training.experiment import experiment_of_checkpoint

PLACES = ("run", "corpus", "baselines")
"""Parts of an evaluation that say where its inputs lay."""
OF_THE_LEDGER = ("looks", "ledger_sha256")
"""Parts that the selection proof compares with the ledger."""
LOSSES_FOLDER = "losses"

Figures = dict[str, Any]


class StoredForecasts(ModelPredictor):
    """The model, which answers for the events of a split with the forecasts stored beside them.

    Figures that follow from these forecasts are then the same to the last digit on any machine.
    """

    def __init__(self, checkpoint: Checkpoint, rows: Rows, probs: Floats) -> None:
        super().__init__(checkpoint, "cpu")
        self.rows = rows
        self.probs = probs

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
        """What the model forecasts, whatever is stored."""
        return super().predict_proba(corpus, rows)


@claim(
    "e. evaluation",
    "evaluated again in a temporary folder: forecasts, losses, every figure, forecasts of others "
    "and report.html; dependence and horizons fitted again on Train",
)
def prove_evaluation(proof: Proof, run: AuditedRun) -> None:
    """Make everything that an evaluation wrote again, and compare it with what lies in the run."""
    if run.files.dependence.is_file():
        fit = Dependence.read(run.files.dependence, run.checkpoint.sha256)
        check_dependence(proof, fit, run.model, run.corpus, run.config)
    if run.files.horizons.is_file():
        check_horizons(proof, run)
    splits = run.files.evaluated_splits()
    if not splits:
        why = "the run has no evaluation (vaiom evaluate)"
        if run.checkpoint.provenance.purpose == USE:
            why = "a refit is for use, and nothing was held out of it"
        proof.notes.append(f"no figures: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        again = _EvaluatedAgain(proof, run, Path(folder))
        for split in splits:
            again.compare_split(split)
        again.compare_all_tests()
        for scored in sorted(run.files.forecasts.glob("*")):
            for split in Run(scored).evaluated_splits():
                again.compare_forecasts_of_others(Run(scored), split)
    compare_page(proof, run)


class _EvaluatedAgain:
    """A run, and a temporary folder into which it is evaluated again, split by split."""

    def __init__(self, proof: Proof, run: AuditedRun, folder: Path) -> None:
        self.proof = proof
        self.run = run
        self.folder = folder
        self.out = folder / "runs" / run.files.path.resolve().name
        """The run as it is evaluated again."""
        # Looks at a test are recorded in a copy of the ledger.
        assert run.corpus.path is not None
        ledger = run.corpus.path / LEDGER_NAME
        corpus_folder = folder / "corpus"
        corpus_folder.mkdir()
        if ledger.is_file():
            shutil.copyfile(ledger, corpus_folder / LEDGER_NAME)
        self.corpus = replace(run.corpus, path=corpus_folder)

    def compare_split(self, split: str) -> None:
        """Evaluate one split again, and compare its events and figures."""
        run = self.run
        Evaluation.read(run.files.path, split)  # refuses what is no evaluation
        stored = read_json(run.files.evaluation(split))
        events = read_events(run.files.path, split)
        unseal = SEALED if split == SEALED else None
        try:
            rows = heldout_rows(self.corpus, split, run.checkpoint, unseal=unseal)
        except UserError as error:
            self.proof.check(False, f"{split}: cannot be evaluated: {error.problem}")
            return
        difference = difference_of(score_events(self.corpus, rows, {}), events)
        problem = f"{split}: other events than the corpus has: {difference}"
        if not self.proof.check(difference is None, problem, len(rows)):
            return
        if events.probs is None:
            self.proof.check(False, f"{split}: the forecasts were taken out of the events file")
            return
        losses = self._store_losses(split, split, rows, events, stored["baselines"], {MODEL})
        model = StoredForecasts(run.checkpoint, rows, events.probs)
        seeds = self._other_seeds(split, stored, events)
        evaluate_run(
            run.files.path,
            self.corpus,
            split,
            model=model,
            baselines=losses,
            other_seeds=seeds or (),
            unseal=unseal,
            out=self.out,
        )
        ours = read_json(Run(self.out).evaluation(split))
        tolerances = self._compare_forecasts(split, model, rows, events, stored)
        if ours["horizons"] and stored["horizons"]:
            self._compare_horizons(split, ours)
        if seeds is None:
            del ours["seeds"]
        elif ours["seeds"]:
            names = dict(zip(map(str, (self.out, *seeds)), _seeds_of(stored), strict=True))
            for summary in ours["seeds"].values():
                summary["bits"] = {names[name]: bits for name, bits in summary["bits"].items()}
        self._forgive(split, ours, stored)
        compare_figures(self.proof, ours, stored, split, tolerances)

    def _store_losses(
        self,
        name: str,
        split: str,
        rows: Rows,
        events: ScoredEvents,
        baselines: str | None,
        known: set[str],
    ) -> Path:
        """Compare losses of baselines with their fits; a folder with the stored ones, as
        `evaluate_run` reads it.
        """
        stored = Path(baselines) if baselines else None
        whole = self.corpus.endpoints(split, self.run.history, unseal=True)
        place = np.searchsorted(whole, rows)
        losses = {}
        for predictor, bits in events.bits.items():
            if predictor in known:
                continue
            self._compare_baseline(name, predictor, rows, events, stored)
            # Losses of events that are not scored here are never read.
            losses[predictor] = np.zeros(len(whole))
            losses[predictor][place] = bits
        folder = self.folder / LOSSES_FOLDER / name
        folder.mkdir(parents=True)
        if losses:
            save_losses(folder, self.corpus, split, losses, self.run.history)
        if stored and (stored / FITS_FOLDER).is_dir():
            (folder / FITS_FOLDER).symlink_to((stored / FITS_FOLDER).resolve())
        return folder

    def _compare_baseline(
        self, where: str, name: str, rows: Rows, events: ScoredEvents, folder: Path | None
    ) -> None:
        """The stored losses are those of the baseline fitted again, or of its stored fit."""
        fitted = self.run.fitted(name, folder)
        if fitted is None:
            self.proof.notes.append(
                f"{where}: {name} was not computed again (--baselines fits those that are named)"
            )
            return
        if name not in self.run.config.baselines:
            self.proof.notes.append(
                f"{where}: {name} by its stored fit, not fitted again (--baselines {name} does)"
            )
        bits = event_bits(fitted.predict_proba(self.corpus, rows), events.buckets)
        self._compare_losses(where, name, bits - events.bits[name], BASELINE_BITS)

    def _compare_losses(self, where: str, name: str, off: Floats, tolerance: float) -> None:
        largest = np.abs(off).max(initial=0)
        problem = f"{where}: {name} gives an event {largest:.1e} bits more or fewer than the file"
        self.proof.check(largest <= tolerance, problem, len(off))

    def _compare_forecasts(
        self,
        split: str,
        model: StoredForecasts,
        rows: Rows,
        events: ScoredEvents,
        stored: Figures,
    ) -> dict[str, float]:
        """The stored forecasts are the checkpoint's up to rounding, and the losses are theirs.

        Returns by how much figures may differ that rest on other answers of the model: by nothing,
        unless another machine made them.
        """
        assert events.probs is not None
        own = np.abs(event_bits(events.probs, events.buckets) - events.bits[MODEL]).max()
        problem = f"{split}: losses and probabilities of the events disagree"
        self.proof.check(own <= SAME_BITS, problem, len(rows))
        chosen = self.run.draw(rows)
        probs = model.own_forecasts(self.corpus, rows[chosen])
        off = events.bits[MODEL][chosen] - event_bits(probs, events.buckets[chosen])
        largest = float(np.abs(off).max())
        mean = float(off.mean())
        rounding = self.run.rounding(split, stored["precision"])
        some = "all" if len(chosen) == len(rows) else f"{len(chosen):,} of"
        self.proof.notes.append(
            f"{split}: {some} {len(rows):,} events scored again, largest difference "
            f"{largest:.1e} bits, mean {mean:+.1e}; {rounding.precision} arithmetic explains "
            f"{rounding.bits:.1e} bits of an event, {rounding.mean_bits:.1e} of their mean"
        )
        problem = (
            f"{split}: losses that are not the checkpoint's: {largest:.1e} bits off, "
            f"{mean:+.1e} in the mean"
        )
        self.proof.check(rounding.explains(off), problem, len(chosen))
        moved = float(np.abs(events.probs[chosen] - probs).max())
        problem = f"{split}: a probability differs by {moved:.1e} from the checkpoint's"
        self.proof.check(moved <= rounding.probability, problem, probs.size)
        return {} if largest <= SAME_BITS else rounding.of_figures(len(rows))

    def _compare_horizons(self, split: str, ours: Figures) -> None:
        """The stored events of each horizon are those of its heads up to rounding.

        The figures that follow from these events are put in place of those made on this machine.
        """
        horizons = load_horizons(self.run.files.horizons, self.run.checkpoint)
        views = {fit.bars: self.corpus.with_target(fit) for fit in horizons.fitted.fits}
        for figures in ours["horizons"]:
            bars = figures["bars"]
            where = f"{split}, {bars} bars"
            now = read_events(self.out, events_name(split, bars))
            try:
                events = read_events(self.run.files.path, events_name(split, bars), same_as=now)
            except UserError as error:
                self.proof.check(False, f"{where}: {error.problem}")
                continue
            if events.probs is None or now.probs is None:
                self.proof.check(False, f"{where}: events without forecasts")
                continue
            view = views[bars]
            rows = view.endpoints(split, self.run.history, unseal=True)
            rounding = self.run.rounding_ahead(split, horizons, view)
            moved = float(np.abs(events.probs - now.probs).max())
            problem = f"{where}: a probability differs by {moved:.1e} from the heads'"
            self.proof.check(moved <= rounding.probability, problem, now.probs.size)
            off = events.bits[MODEL] - now.bits[MODEL]
            largest = f"{np.abs(off).max():.1e} bits off, {off.mean():+.1e} in the mean"
            problem = f"{where}: losses that are not the heads': {largest}"
            self.proof.check(rounding.explains(off), problem, len(off))
            for name in events.bits.keys() - {MODEL}:
                if name not in now.bits:
                    self.proof.notes.append(
                        f"{where}: {name} was not computed again, no fit was found"
                    )
                else:
                    off = events.bits[name] - now.bits[name]
                    self._compare_losses(where, name, off, max(BASELINE_BITS, rounding.bits))
            figures |= to_json(figures_of_horizon(view, rows, events))

    def _other_seeds(self, split: str, stored: Figures, events: ScoredEvents) -> list[Path] | None:
        """The runs of other seeds, checked to be what they are said to be; None if one is gone."""
        folders = []
        models = [self.run.checkpoint]
        for name in _seeds_of(stored)[1:]:
            # They are where they were evaluated, or beside this run.
            beside = self.run.files.path.parent / Path(name).name
            folder = Path(name) if Path(name).is_dir() else beside
            try:
                theirs = read_events(folder, split, same_as=events)
                model = ModelPredictor.load(Run(folder).best, "cpu")
            except UserError as error:
                why = f"{error.problem}: {error.where}"
                self.proof.notes.append(f"{split}: not recomputed: seeds ({why})")
                return None
            folders.append(folder)
            models.append(model.checkpoint)
            rows = self.corpus.endpoints(split, self.run.history, unseal=True)
            chosen = self.run.draw(rows)
            now = event_bits(model.predict_proba(self.corpus, rows[chosen]), events.buckets[chosen])
            own = self.run.rounding(split, None).explains(theirs.bits[MODEL][chosen] - now)
            problem = f"{split}: seeds: the losses of {name} are not its checkpoint's"
            self.proof.check(own, problem, len(chosen))
        if folders:
            recipes = {
                experiment_of_checkpoint(each).with_changes(seed=0).sha256 for each in models
            }
            weights = {each.sha256 for each in models}
            seeds = {each.provenance.seed for each in models}
            different = len(recipes) == 1 and len(weights) == len(seeds) == len(models)
            problem = f"{split}: seeds: not different seeds of one experiment"
            self.proof.check(different, problem)
        return folders

    def _forgive(self, split: str, ours: Figures, stored: Figures) -> None:
        """Leave out what cannot be the same or is proved elsewhere, and say so where it matters."""
        for name in (*PLACES, *OF_THE_LEDGER, "all_tests", "precision", "corpus_sha256"):
            ours[name] = stored[name]
        notes = self.proof.notes
        if None in (ours["confidence_set"], stored["confidence_set"]):  # which needs `arch`
            notes.append(f"{split}: not compared: confidence_set")
            ours["confidence_set"] = stored["confidence_set"]
        if stored["corpus_sha256"] != self.corpus.sha256:
            notes.append(f"{split}: not recomputed, the corpus has grown since: zero_share")
            ours["zero_share"] = stored["zero_share"]
        for name, file in (
            ("joint", self.run.files.dependence),
            ("horizons", self.run.files.horizons),
        ):
            if ours[name] is not None and stored[name] is None:
                notes.append(f"{split}: the evaluation has no {name}, and {file.name} is there")
                ours[name] = None

    def compare_all_tests(self) -> None:
        """The figures over all tests together are those of their stored events."""
        tests = self.corpus.splits.test_names
        evaluated = {name for name in tests if Run(self.out).evaluation(name).is_file()}
        if len(tests) < 2 or evaluated != set(tests):
            return
        told = False
        for split in tests:
            stored = read_json(self.run.files.evaluation(split))
            if stored["all_tests"] is not None:
                told = True
                ours = to_json(compare_tests(self.out, tests, list(stored["bits"])))
                compare_figures(self.proof, ours, stored["all_tests"], f"{split}.all_tests")
        self.proof.check(
            told, "all tests were scored, and no evaluation has the figures of all of them together"
        )

    def compare_forecasts_of_others(self, folder: Run, split: str) -> None:
        """Score forecasts of others again, as they were given.

        They cannot be made again: those of a test must be in the ledger, and everything else that
        the folder says follows from them.
        """
        name = folder.path.name
        where = f"{name}, {split}"
        stored = to_json(ForecastScore.read(folder.path, split))
        events = read_events(folder.path, split)
        rows = find_rows(
            self.corpus, self.corpus.target_timestamps, events.symbols, events.target_times
        )
        judged = Run(self.out).evaluation(split).is_file()
        whole = self.corpus.endpoints(split, self.run.history, unseal=True)
        inside = judged and len(np.unique(rows)) == len(rows) and np.isin(rows, whole).all()
        problem = f"{where}: events without forecasts, or that the run does not have"
        if not self.proof.check(bool(inside) and events.probs is not None, problem):
            return
        ours, now = self._score_again(name, split, rows, events, stored)
        for predictor in now.bits.keys() & events.bits.keys():
            off = now.bits[predictor] - events.bits[predictor]
            self._compare_losses(where, predictor, off, SAME_BITS)
        known = self.proof.check(
            stored["form"] in FORMS,
            f"{where}: forecasts of an unknown form, {stored['form'][:80]}",
        )
        if known:
            ours["form"] = stored["form"]
        # Of a table that is not kept, only what is said of it can be compared.
        ours["num_unused"] = stored["num_unused"]
        ours["caveats"][0] = caveat_of_missing(
            len(whole) - len(rows), len(whole), stored["num_unused"], stored["form"]
        )
        looks = enumerate(model_accesses(self.run.corpus, split), start=1)
        digest = ours["checkpoint_sha256"]
        numbers = [number for number, look in looks if look.checkpoint_sha256 == digest]
        in_ledger = stored["looks"] in (numbers if is_recorded(self.corpus, split) else [None])
        self.proof.check(in_ledger, f"{where}: the ledger has no such look at these forecasts")
        for part in ("corpus", "baselines", "looks", "corpus_sha256"):
            ours[part] = stored[part]
        compare_figures(self.proof, ours, stored, where)
        self.proof.notes.append(f"{where}: forecasts of others, taken as they were given")

    def _score_again(
        self, name: str, split: str, rows: Rows, events: ScoredEvents, stored: Figures
    ) -> tuple[Figures, ScoredEvents]:
        """Figures and events of forecasts that are given as stored."""
        from vaiom.evaluation.forecasts import score  # which needs a dataframe library

        assert events.probs is not None
        runs = [each for each in events.bits if each.startswith(RUN_PREFIX)]
        known = {MODEL, *runs}
        where = f"{name}, {split}"
        losses = self._store_losses(where, split, rows, events, stored["baselines"], known)
        against = self.out
        if runs:
            # The run may have had another name when they were scored.
            against = self.out.with_name(runs[0].removeprefix(RUN_PREFIX))
            if not against.exists():
                against.symlink_to(self.out, target_is_directory=True)
        table: dict[str, Any] = {"symbol": events.symbols, "target_time": events.target_times}
        for bucket, column in enumerate(events.probs.T, start=1):
            table[f"p{bucket}"] = column
        score(
            table,
            self.corpus,
            split,
            name=name,
            against=against,
            baselines=losses,
            unseal=SEALED if split == SEALED else None,
            save=True,
        )
        again = Run(Run(self.out).forecasts / name)
        return read_json(again.evaluation(split)), read_events(again.path, split)


def _seeds_of(stored: Figures) -> list[str]:
    """The names of the runs whose seeds were summarised, this one first."""
    if not stored["seeds"]:
        return []
    summary = next(iter(stored["seeds"].values()))
    return list(summary["bits"])


def compare_figures(
    proof: Proof,
    ours: Any,
    stored: Any,
    path: str,
    tolerances: Mapping[str, float] | None = None,
    absolute: float = ABSOLUTE,
) -> None:
    """Every value of what was computed again must be in the file, and no other.

    `tolerances` allow more than the last digits below the keys that they name.
    """
    tolerances = tolerances or {}
    if isinstance(ours, dict):
        theirs = stored if isinstance(stored, dict) else {}
        added = sorted(theirs.keys() - ours.keys())
        proof.check(not added, f"{path}: the file has {', '.join(added)}, which nothing gives")
        for key, value in ours.items():
            allowed = tolerances.get(key, absolute)
            compare_figures(proof, value, theirs.get(key), f"{path}.{key}", tolerances, allowed)
    elif isinstance(ours, list):
        same_size = isinstance(stored, list) and len(stored) == len(ours)
        if proof.check(same_size, f"{path}: {len(ours)} entries recomputed, not those of the file"):
            for at, value in enumerate(ours):
                compare_figures(proof, value, stored[at], f"{path}[{at}]", tolerances, absolute)
    else:
        same = bool(ours == stored)
        if isinstance(ours, float) and isinstance(stored, int | float):
            same = math.isclose(ours, stored, rel_tol=RELATIVE, abs_tol=absolute)
        proof.check(same, f"{path}: the file says {stored}, recomputed {ours}")
