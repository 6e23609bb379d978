"""The whole job through the public names, on a tiny simulated market."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vaiom
from tiny import SPLITS
from training.tiny_runs import TINY
from vaiom.errors import ConfigError, DataError

CONTEXT = 16


@pytest.mark.parametrize("name", ["train", "fit_baselines", "evaluate", "audit"])
def test_what_needs_torch_says_how_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "vaiom.errors.find_spec", lambda library: None if library == "torch" else find(library)
    )
    arguments = (tmp_path, tmp_path / "out")[: 2 if name in ("train", "fit_baselines") else 1]
    with pytest.raises(ConfigError, match="this needs torch") as refused:
        getattr(vaiom, name)(*arguments)
    assert refused.value.fix == "pip install 'vaiom[train]'"


def test_the_whole_job(tmp_path: Path) -> None:
    market = vaiom.simulate(tmp_path / "bars", assets=2, bars=3_000)
    bars = vaiom.read_bars(str(tmp_path / "bars"))
    assert all(bars[symbol].equals(frame) for symbol, frame in market.items())
    assert repr(bars) == repr(market) == f"<BarFrames of 2 assets, 6,000 rows: {', '.join(bars)}>"

    with pytest.raises(DataError, match="exists already"):
        vaiom.simulate(tmp_path / "bars", assets=2, bars=3_000)

    corpus = vaiom.build_corpus(tmp_path / "bars", tmp_path / "corpus", splits=SPLITS)
    assert vaiom.open_corpus(tmp_path / "corpus").sha256 == corpus.sha256
    assert repr(corpus) == f"<Corpus of 2 assets, 1h bars, 6,000 rows, {tmp_path / 'corpus'}>"

    trained = vaiom.train(
        corpus, tmp_path / "run", experiment=TINY, steps=6, context=CONTEXT, device="cpu"
    )
    assert trained.last_step == 6

    bits = vaiom.fit_baselines(
        tmp_path / "corpus", tmp_path / "baselines", only=["frequency"], context=CONTEXT
    )
    result = vaiom.evaluate(trained, baselines=tmp_path / "baselines", device="cpu")
    assert result.bits["frequency"] == bits["frequency"]
    assert len(repr(result)) < 200
    assert "validation" in repr(result)
    assert (
        vaiom.evaluate(str(tmp_path / "run"), corpus=corpus, device="cpu").bits["model"]
        == result.bits["model"]
    )

    for path in (corpus, trained):
        proofs = vaiom.audit(
            path, bars=tmp_path / "bars", cuts=1, rare_cuts=0, baselines=["frequency"]
        )
        assert {proof.verdict for proof in proofs} <= {"passed", "not run"}
        assert all(len(repr(proof)) < 120 for proof in proofs)

    forecaster = vaiom.Forecaster.load(trained.run)
    dists = forecaster.predict(bars)
    assert dists.keys() == bars.keys()
    assert all(isinstance(dist, vaiom.ReturnDistribution) for dist in dists.values())
    assert f"context {CONTEXT}" in repr(forecaster)
    assert np.isfinite(dists[min(dists)].ppf(0.01))
    json.dumps(dists[min(dists)].to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", [name for name in vaiom.__all__ if not name.startswith("__")])
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert name in dir(vaiom)
    assert inspect.getdoc(getattr(vaiom, name))


def test_rooms_do_not_take_functions_away() -> None:
    from vaiom.auditing.proof import Proof
    from vaiom.simulation.market import MarketConfig

    assert callable(vaiom.audit)
    assert callable(vaiom.simulate)
    assert "overwrite" in inspect.signature(vaiom.simulate).parameters
    for function, words in (
        (vaiom.audit, "Prove that a corpus or a run"),
        (vaiom.simulate, "Simulate a market"),
    ):
        assert words in pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert (Proof.__name__, MarketConfig.__name__) == ("Proof", "MarketConfig")
    with pytest.raises(TypeError):
        vaiom.simulate()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="Forecaster"):
        _ = vaiom.Nonsense


def test_threads_that_wait_do_not_spin_for_long() -> None:
    """Two spinning threads on two busy processors made training twenty times slower."""
    code = "import os, vaiom; print(os.environ['GOMP_SPINCOUNT'], os.environ['ONEDNN_MAX_CPU_ISA'])"
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("GOMP", "ONEDNN"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=True
    )
    assert done.stdout.split() == ["20000", "AVX512_CORE_FP16"]


@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux shows them"
)
def test_products_of_numpy_start_no_threads_in_commands_and_are_left_alone_elsewhere() -> None:
    product = "rows = np.ones((512, 512)); rows @ rows; print(len(os.listdir('/proc/self/task')))"
    clean = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    code = (
        f"import os, vaiom; print('OPENBLAS_NUM_THREADS' in os.environ); import "
        f"vaiom.cli.main, numpy as np; {product}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=True
    )
    assert done.stdout.split() == ["False", "1"]
