"""Progress of a training, from the lines of its metrics."""

from __future__ import annotations

from typing import Any

from vaiom.training.progress import training_progress

TWO_BITS = 1.3862943611198906  # in nats


def test_lines_of_a_training() -> None:
    told: list[tuple[int, int, str]] = []
    report = training_progress(lambda *words: told.append(words))
    common: dict[str, Any] = {"steps": 100, "loss_nats": TWO_BITS, "best_bits": 1.9}
    for entry in (
        {"step": 10, "seconds": 5.0, "best_bits": None, "teacher": 1, "teachers": 2},
        {"step": 20, "seconds": 9.0, "validation_bits": 1.9},
        {"step": 30, "seconds": 14.0, "validation_bits": 1.95},
        {"step": 40, "seconds": 14.0},
        {"step": 5, "seconds": 15.0},
    ):
        report({**common, **entry})
    assert told == [
        (10, 100, "teacher 1 of 2, loss 2.0000 bits"),
        (
            20,
            100,
            "loss 2.0000 bits, Validation 1.9000 bits, best 1.9000, 2.5 steps/s, 0:00:32 left",
        ),
        (
            30,
            100,
            "loss 2.0000 bits, Validation 1.9500 bits, best 1.9000 and rising since, "
            "2.0 steps/s, 0:00:35 left",
        ),
        (40, 100, "loss 2.0000 bits, best 1.9000"),
        (5, 100, "loss 2.0000 bits, best 1.9000"),
    ]
