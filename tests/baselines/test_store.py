"""Stored losses and fits, and the command that makes them: the same events or a refusal, one fit
for all splits.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from small_fits import with_columns

from vaiom.baselines.base import BASELINES, SHORTENED, baseline
from vaiom.baselines.counts import Frequency
from vaiom.baselines.stored_losses import FITS_FOLDER, fit_or_load, load_losses, save_losses
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError
from vaiom.files import canonical_json, sha256_of

QUICK = ("frequency", "markov", "hour_of_week", "ewma_t")


SETTINGS = {
    "lightgbm_disc": "263d6eb2",
    "lightgbm_cont": "cf74a9f1",
    "lightgbm": "8fc2f574",
    "lightgbm_lags": "087f8d29",
    "lightgbm_extra": "923c35ab",
    "tabm": "650da4d1",
    "return_tokens": "c945839c",
    "gru": "34551b21",
}
"""Hashes of the settings behind published figures; stored fits are found by them."""


def some_losses(corpus: Corpus, split: str = "validation", context: int = 512) -> np.ndarray:
    return np.random.default_rng(2).random(len(corpus.endpoints(split, context)))


def test_settings_are_those_of_the_published_figures() -> None:
    found = {
        name: sha256_of(canonical_json(config))
        for name in BASELINES
        if name not in SHORTENED and (config := baseline(name).config())
    }
    assert {name: each[:8] for name, each in found.items()} == SETTINGS


def test_losses_come_back_and_later_ones_join_them(corpus: Corpus, tmp_path: Path) -> None:
    one = some_losses(corpus)
    save_losses(tmp_path, corpus, "validation", {"a": one, "b": one + 1})
    save_losses(tmp_path, corpus, "validation", {"b": one + 2})
    got = load_losses(tmp_path, corpus, "validation")
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"], one)
    np.testing.assert_array_equal(got["b"], one + 2)
    assert [file.name for file in tmp_path.iterdir()] == ["validation.npz"]
    # Who scored what is sealed may read it: it is the scoring that asks.
    sealed = np.ones(len(corpus.endpoints("sealed", unseal=True)))
    save_losses(tmp_path, corpus, "sealed", {"a": sealed})
    np.testing.assert_array_equal(load_losses(tmp_path, corpus, "sealed")["a"], sealed)


def test_processes_that_store_at_once_lose_nothing(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = some_losses(corpus)
    save_losses(tmp_path, corpus, "validation", {"a": one})
    other = Thread(target=save_losses, args=(tmp_path, corpus, "validation", {"b": one}))

    def read_while_another_comes(*words: Any) -> Any:
        monkeypatch.setattr("vaiom.baselines.stored_losses.load_losses", load_losses)
        found = load_losses(*words)
        other.start()
        other.join(timeout=0.3)  # it waits for its turn
        return found

    monkeypatch.setattr("vaiom.baselines.stored_losses.load_losses", read_while_another_comes)
    save_losses(tmp_path, corpus, "validation", {"c": one})
    other.join()
    assert load_losses(tmp_path, corpus, "validation").keys() == {"a", "b", "c"}


def test_losses_of_anything_else_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    save_losses(tmp_path, corpus, "validation", {"a": some_losses(corpus)})
    file = tmp_path / "validation.npz"
    with pytest.raises(DataError, match="not of this context"):
        load_losses(tmp_path, corpus, "validation", 64)
    with pytest.raises(DataError, match="not of this context"):
        save_losses(tmp_path, corpus, "validation", {"a": some_losses(corpus, context=64)}, 64)
    with pytest.raises(DataError, match="no stored losses"):
        load_losses(tmp_path, corpus, "test-h1")
    file.rename(tmp_path / "test-h1.npz")
    with pytest.raises(DataError, match="not of this split"):
        load_losses(tmp_path, corpus, "test-h1")
    (tmp_path / "test-h1.npz").rename(file)

    # Other events under the same hash, as a damaged file would have them.
    event = corpus.endpoints("validation")[3]
    flags, buckets = np.array(corpus.columns["flags"]), np.array(corpus.columns["return_bucket"])
    flags[event] |= 1
    with pytest.raises(DataError, match="not of this set of events"):
        load_losses(tmp_path, with_columns(corpus, flags=flags), "validation")
    buckets[event + 1] = buckets[event + 1] % 16 + 1
    with pytest.raises(DataError, match="other buckets"):
        load_losses(tmp_path, with_columns(corpus, return_bucket=buckets), "validation")


def test_losses_of_another_corpus_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    save_losses(tmp_path, corpus, "validation", {"a": some_losses(corpus)})
    other = with_columns(corpus)
    other.__dict__["sha256"] = "0" * 64
    with pytest.raises(DataError, match="not of this corpus"):
        load_losses(tmp_path, other, "validation")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x93NUMPY"])
def test_a_damaged_file_is_named(corpus: Corpus, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "validation.npz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        load_losses(tmp_path, corpus, "validation")


def test_a_fit_is_made_once_and_again_for_other_events(corpus: Corpus, tmp_path: Path) -> None:
    class Counted(Frequency):
        fits = 0

        def fit(self, corpus: Corpus, rows: np.ndarray) -> Counted:
            Counted.fits += 1
            return super().fit(corpus, rows)

    one, two = (fit_or_load(Counted(), corpus, 512, tmp_path) for _ in range(2))
    assert Counted.fits == 1
    np.testing.assert_array_equal(one.probs_, two.probs_)
    fit_or_load(Counted(), corpus, 64, tmp_path)
    assert Counted.fits == 2
    assert len(list((tmp_path / FITS_FOLDER).iterdir())) == 2
    assert (
        len({each.sha256 for each in (corpus, corpus.with_target(4), corpus.with_target(8))}) == 3
    )
    # Who learns bars has one fit for all sums.
    fit_or_load(Counted(), corpus.with_target(4), 512, tmp_path)
    Counted.fits_bars = True
    fit_or_load(Counted(), corpus.with_target(8), 512, tmp_path)
    assert Counted.fits == 3


def test_the_command_scores_stores_and_says_the_same(
    corpus: Corpus, tmp_path: Path, vaiom: Any
) -> None:
    command = ("baselines", corpus.path, "--out", tmp_path, "--only", ",".join(QUICK))
    answer = vaiom(*command, "--json").json()
    stored = load_losses(tmp_path, corpus, "validation")
    assert answer == {
        "split": "validation",
        "events": len(corpus.endpoints("validation")),
        "bits": {name: float(stored[name].mean()) for name in QUICK},
    }
    shown = vaiom(*command, "--split", "test-h1").out
    assert f"{load_losses(tmp_path, corpus, 'test-h1')['markov'].mean():.4f}" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "markov,catboost"), "unknown baseline"),
        (("--only", ""), "unknown baseline"),
        (("--split", "sealed"), "sealed"),
        (("--split", "buffer"), "never scored"),
        (("--split", "test"), "unknown split"),
        (("--context", "0"), "context"),
        (("--context", "99999"), "no events in this split"),
    ],
)
def test_the_command_refuses_before_it_fits_anything(
    corpus: Corpus, tmp_path: Path, vaiom: Any, words: tuple[str, ...], says: str
) -> None:
    ran = vaiom("baselines", corpus.path, "--out", tmp_path / "new", *words, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert not (tmp_path / "new").exists()


def test_losses_and_counts_need_no_library_but_numpy(corpus: Corpus, tmp_path: Path) -> None:
    save_losses(tmp_path, corpus, "validation", {"a": some_losses(corpus)})
    code = """
import sys
sys.modules.update(dict.fromkeys(["lightgbm", "arch", "scipy", "polars", "pandas", "pyarrow", "torch"]))
from pathlib import Path
from vaiom.baselines.base import baseline
from vaiom.baselines.stored_losses import load_losses
from vaiom.corpus.store import open_corpus
corpus = open_corpus(sys.argv[1])
train = corpus.endpoints("train")
shapes = [baseline(n).fit(corpus, train).predict_proba(corpus, train[:2]).shape for n in ("markov", "hour_of_week")]
print(shapes, list(load_losses(Path(sys.argv[2]), corpus, "validation")))
"""
    command = [sys.executable, "-c", code, str(corpus.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[(2, 16), (2, 16)] ['a']", "")
