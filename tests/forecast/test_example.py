"""The notebook-style example runs as a plain script on what a demo leaves, and says what the
package says.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from forecast_runs import CONTEXT, TinyRun

from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.py"


@pytest.mark.parametrize("kind", ["tiny", "simulated_world"])
def test_the_example_runs(
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: TinyRun = request.getfixturevalue(kind)
    folder = made.run.parent
    mpl.use("Agg")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(folder)])
    names = runpy.run_path(str(EXAMPLE))
    assert f"context {CONTEXT}, for evidence" in capsys.readouterr().out
    assert names["difference"] < 1e-6
    assert (folder / "fans.png").read_bytes().startswith(b"\x89PNG")
    # The example's way to the bits is a long one; evaluation's is short.
    events = names["events"]
    assert len(events) > 100
    probs = ModelPredictor.load(made.run / "best.safetensors", "cpu").predict_proba(
        made.corpus, events
    )
    expected = event_bits(probs, made.corpus.target_return[events])
    np.testing.assert_allclose(names["bits"]["model"], expected, atol=1e-4)


def test_every_cell_begins_as_one() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    cells = [line for line in lines if line.startswith("# %%")]
    assert lines[0] == "# %% [markdown]"
    assert set(cells) == {"# %%", "# %% [markdown]"}
