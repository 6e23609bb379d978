"""A few histories on a simulated machine, and a few planted bugs; `make check-simulation` has the
many.
"""

from __future__ import annotations

import pytest

from verification.simulation.history import run_history
from verification.simulation.models import Model, make_models
from verification.simulation.planted import BUGS, planted
from verification.simulation.run import find_bug, prepare


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return prepare(folder)


def test_nothing_that_must_not_happen_happens(models: list[Model]) -> None:
    for seed in range(15):
        run_history(seed, models)


def test_a_seed_decides_a_whole_history(models: list[Model]) -> None:
    assert run_history(3, models) == run_history(3, models)


@pytest.mark.parametrize(
    "name", ["a commit is skipped", "the clock is not asked", "a cut leaves what is live"]
)
def test_a_planted_bug_is_found(models: list[Model], name: str) -> None:
    assert find_bug(name, range(20), models)[1] > 0


def test_every_bug_can_be_planted() -> None:
    for name in BUGS:
        with planted(name):
            pass
