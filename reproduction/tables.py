"""Every table that is no comparison of runs on Validation, by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable

from reproduction.cells import Noted
from reproduction.corpus_tables import coverage, edges, splits
from reproduction.findings import Records
from reproduction.our_tables import all_baselines, best_model, walk_forward
from reproduction.paper_tables import bootstrap, main_test, seeds_test, seeds_validation, tails

SPECIAL: dict[str, Callable[[Records], list[Noted]]] = {
    "main-test": main_test,
    "seeds-test": seeds_test,
    "seeds-validation": seeds_validation,
    "tails": tails,
    "bootstrap": bootstrap,
    "best": best_model,
    "baselines": all_baselines,
    "walk-forward": walk_forward,
    "splits": splits,
    "coverage": coverage,
    "corpus-audit": edges,
}
