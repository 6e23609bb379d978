"""What a training reports while it runs, as progress of its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from vaiom.files import Progress


def training_progress(progress: Progress) -> Callable[[dict[str, Any]], None]:
    """A callback for `train` that turns each line of its metrics into a step done and a sentence.

    The sentence has the loss, Validation bits and the best so far, the speed and the time left.
    Speed is that since the line before, so that a pause for Validation is not spread over the whole
    training.
    """
    before: tuple[int, float] | None = None

    def report(entry: dict[str, Any]) -> None:
        nonlocal before
        step = entry["step"]
        seconds = entry["seconds"]
        parts = []
        if "teacher" in entry:
            parts.append(f"teacher {entry['teacher']} of {entry['teachers']}")
        parts.append(f"loss {entry['loss_nats'] / math.log(2):.4f} bits")
        best = entry["best_bits"]
        now = entry.get("validation_bits")
        if now is not None:
            parts.append(f"Validation {now:.4f} bits")
        if best is not None:
            is_rising = now is not None and now > best
            parts.append(f"best {best:.4f}{' and rising since' if is_rising else ''}")
        if before and step > before[0] and seconds > before[1]:
            steps_per_second = (step - before[0]) / (seconds - before[1])
            left = timedelta(seconds=round((entry["steps"] - step) / steps_per_second))
            parts += [f"{steps_per_second:.1f} steps/s", f"{left} left"]
        before = (step, seconds)
        progress(step, entry["steps"], ", ".join(parts))

    return report
