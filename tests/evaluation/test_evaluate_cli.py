"""`vaiom evaluate` from a trained run to its figures, and everything it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_market import TINY_SPLITS, TinyRuns

from vaiom.baselines.base import BASELINES, SHORTENED
from vaiom.baselines.counts import Frequency, Markov
from vaiom.baselines.stored_losses import save_losses
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import ConfigError
from vaiom.evaluation.access_ledger import LEDGER_NAME, ledger_heads, model_accesses
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.record import SampleSize, caveats_of
from vaiom.evaluation.scores import event_bits, losses_of, read_events
from vaiom.model.checkpoint import load_model
from vaiom.model.vaiom import Vaiom
from vaiom.run import Run


@pytest.fixture
def place(tiny: TinyRuns, tmp_path: Path) -> Path:
    """Copies of the corpus and both runs that nobody has evaluated."""
    shutil.copytree(tiny.corpus, tmp_path / "corpus")
    for run in tiny.runs:
        shutil.copytree(run, tmp_path / run.name)
    return tmp_path


@pytest.fixture
def command(vaiom: Any, place: Path) -> Callable[[str], Any]:
    """Runs a command line as it is typed; AT stands for the folder of the copies."""

    def run(line: str) -> Any:
        return vaiom(*line.replace("AT/", f"{place}/").split())

    return run


EVALUATE = "evaluate AT/seed17 --corpus AT/corpus --device cpu "


def test_figures_are_those_of_the_events_and_each_test_access_counts(
    place: Path, command: Callable[[str], Any]
) -> None:
    corpus = open_corpus(place / "corpus")
    run = Run(place / "seed17")
    got = command(EVALUATE + "--split validation --json").json()
    assert got == json.loads(run.evaluation("validation").read_text())
    rows = corpus.endpoints("validation", 16)
    events = read_events(run.path, "validation")
    model = ModelPredictor.load(run.best, "cpu")
    bits = event_bits(model.predict_proba(corpus, rows), events.buckets)
    np.testing.assert_allclose(events.bits["model"], bits, atol=1e-5)
    [frequency] = losses_of([Frequency()], corpus, rows, 16).values()
    np.testing.assert_array_equal(events.bits["frequency"], frequency)
    assert list(got["bits"]) == ["model", "frequency", "markov", "hour_of_week"]
    assert got["bits"]["model"] == pytest.approx(bits.mean(), abs=1e-5)
    gain = got["against"][0]["gain"]
    assert gain["gain_bits"] == pytest.approx((frequency - bits).mean(), abs=1e-5)
    assert gain["asset_months"]["num_blocks"] == 4
    assert set(got["by"]) == {"asset", "month", "hour", "bucket", "vol_regime"}
    hours = corpus.target_timestamps[rows].astype("datetime64[h]").astype(int) % 24
    by_hour = {int(each["group"]): each["num_events"] for each in got["by"]["hour"]}
    assert by_hour == Counter(hours.tolist())
    inside = corpus.log_ret_next[corpus.split_codes == corpus.splits.code("validation")]
    assert got["zero_share"] == np.mean(inside == 0)
    assert len(got["mixture"]["mean_weight"]) == 4
    provenance = model.checkpoint.provenance
    expected = {
        "looks": None,
        "seeds": None,
        "all_tests": None,
        "baselines": None,
        "horizons": None,
        "num_events": len(rows),
        "seed": 17,
        "step": provenance.step,
        "experiment": "tiny",
        "precision": "float32",
        "checkpoint_sha256": model.checkpoint.sha256,
        "corpus_sha256": corpus.sha256,
        "run": str(run.path),
        "corpus": str(corpus.path),
    }
    assert {name: got[name] for name in expected} == expected
    assert not (place / "corpus" / LEDGER_NAME).exists()

    for count, split in ((1, "test-h1"), (2, "test-h1"), (1, "test-h2")):
        ran = command(f"{EVALUATE} --split {split}")
        assert ran.code == 0, ran.err
        told = ran.out + ran.err[ran.err.rindex("events\n") :]
        shown = told.replace(str(place), "runs").splitlines()
        assert shown[0].startswith("On ")  # the verdict
        assert max(map(len, shown)) <= 80, max(shown, key=len)
        assert len(model_accesses(corpus, split)) == count
        times = "once, now" if count == 1 else f"{count} times, this one included"
        assert f"looked at {times}" in " ".join(ran.err.split())
    both = json.loads(run.evaluation("test-h2").read_text())["all_tests"][0]["gain"]
    parts = [read_events(run.path, split) for split in ("test-h1", "test-h2")]
    assert both["num_events"] == sum(map(len, parts))


def test_an_evaluation_enters_the_model_once_for_each_row(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With horizons and joint figures too; without other assets is another question."""
    corpus = open_corpus(place / "corpus")
    run = place / "seed17"
    model = ModelPredictor.load(Run(run).best, "cpu")
    rows = corpus.endpoints("validation", 16)
    some = rows[::3]
    alone = model.predict_proba(corpus, some)
    states = model.predict_states(corpus, some)
    model.compute(corpus, rows)
    monkeypatch.setattr(Vaiom, "hidden", None)
    np.testing.assert_allclose(model.predict_proba(corpus, some), alone, atol=1e-6)
    for found, expected in zip(model.predict_states(corpus, some) or (), states or (), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(
        model.inputs(corpus, some), corpus.inputs(model.checkpoint.config)[some]
    )
    with pytest.raises(TypeError):  # a row that was not computed needs the model
        model.predict_proba(corpus, np.array([rows[0] - 1]))


def test_all_tests_together_follow_the_events_and_the_checkpoint(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever split is scored again, nothing stored rests on events that are gone or of another
    model.
    """
    monkeypatch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 50)
    monkeypatch.setattr(
        ModelPredictor, "predict_proba", lambda _, corpus, rows: np.full((len(rows), 16), 1 / 16)
    )
    corpus, run = open_corpus(place / "corpus"), place / "seed17"
    first, second = (Run(run).evaluation(split) for split in ("test-h1", "test-h2"))

    def together(file: Path) -> Any:
        found = json.loads(file.read_text())["all_tests"]
        return found and {each["baseline"]: each["gain"]["gain_bits"] for each in found}

    found = evaluate_run(run, corpus, "test-h1", device="cpu")
    assert (found.all_tests, found.looks) == (None, 1)
    assert found.ledger_sha256 == ledger_heads(corpus)[-1]
    evaluate_run(run, corpus, "test-h2", device="cpu")
    both = together(second)
    assert (together(first), list(both)) == (None, ["frequency", "markov", "hour_of_week"])
    parts = [read_events(run, split) for split in ("test-h1", "test-h2")]
    gains = np.concatenate([part.bits["frequency"] - part.bits["model"] for part in parts])
    assert both["frequency"] == pytest.approx(gains.mean())
    # Validation is no test, and changes nothing.
    assert evaluate_run(run, corpus, "validation", device="cpu").all_tests is None
    assert together(second) == both
    monkeypatch.setattr(
        ModelPredictor,
        "predict_proba",
        lambda _, corpus, rows: np.tile(np.eye(16)[7], (len(rows), 1)),
    )
    evaluate_run(run, corpus, "test-h1", device="cpu")
    assert together(first) == together(second) != both
    second.write_text(
        json.dumps({**json.loads(second.read_text()), "checkpoint_sha256": "of another"})
    )
    assert evaluate_run(run, corpus, "test-h1", device="cpu").all_tests is None
    assert together(second) is None


def test_figures_may_be_written_elsewhere_with_the_model_and_never_into_a_packaged_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaiom.evaluation.inference.CONFIDENCE_SET_REPLICATES", 50)
    corpus, run, out = open_corpus(place / "corpus"), place / "seed17", place / "new" / "folder"
    before, reported = sorted(run.rglob("*")), list[Any]()
    found = evaluate_run(
        run, corpus, "validation", out=out, device="cpu", progress=lambda *at: reported.append(at)
    )
    assert sorted(path.name for path in out.iterdir()) == [
        *("best.safetensors", "evaluation-validation.json", "events-validation.parquet")
    ]
    assert Run(out).best.read_bytes() == Run(run).best.read_bytes()
    assert (found.run, sorted(run.rglob("*")), bool(reported)) == (str(out), before, True)
    ours = place / "models" / "ours"
    shutil.copytree(run, ours, ignore=shutil.ignore_patterns("evaluation-*"))
    monkeypatch.setattr("vaiom.evaluation.evaluate.MODELS", place / "models")
    with pytest.raises(ConfigError, match="packaged model is not written into"):
        evaluate_run(ours, corpus, "validation", device="cpu")
    assert not Run(ours).evaluation("validation").exists()


ROUGH = "The month-clustered interval rests on {} blocks only: take it as a rough width."


@pytest.mark.parametrize(
    ("assets", "months", "empty", "purpose", "says"),
    [
        (2, 7, [], "", []),
        (2, 6, [], "", [ROUGH.format(6)]),
        (2, 2, [], "", [ROUGH.format(2)]),
        (1, 7, [], "", ["One asset only: asset-months and months are the same blocks."]),
        (2, 1, [], "", ["One month only: the month-clustered interval is undefined."]),
        (
            1,
            1,
            [],
            "",
            [
                "One month only: the month-clustered interval is undefined.",
                "One asset in one month is a single block: no interval can be given.",
            ],
        ),
        (
            2,
            7,
            [1, 16],
            "",
            ["No event ended in bucket 1, 16: no figure there, and calibration is untested."],
        ),
        (2, 7, [], "use", ["The model is a refit, for use and not for evidence."]),
    ],
)
def test_small_samples_and_refits_have_caveats(
    assets: int, months: int, empty: list[int], purpose: str, says: list[str]
) -> None:
    assert (
        caveats_of(SampleSize(num_assets=assets, num_months=months, empty_buckets=empty), purpose)
        == says
    )


def test_a_single_month_prints_what_cannot_be_said(
    command: Callable[[str], Any],
) -> None:
    ran = command(f"{EVALUATE} --split test-h1 --all --out AT/{'-long' * 20}")
    assert f"{'-long' * 20}/evaluation-" in ran.err  # words of more than a line are not broken
    assert "One month only: the month-clustered interval is undefined." in ran.err
    assert "undefined" in ran.out
    assert "non-zero next return" in ran.err
    for heading in ("paired gain", "by asset", "by month", "calibration", "value at risk"):
        assert heading in ran.out


def test_stored_losses_and_other_seeds_stand_beside_the_run(
    place: Path, command: Callable[[str], Any]
) -> None:
    corpus = open_corpus(place / "corpus")
    guess = np.full(len(corpus.endpoints("validation", 16)), 4.0)
    save_losses(place / "stored", corpus, "validation", {"guess": guess}, 16)
    on = "--split validation --baselines AT/stored "
    assert "no scored events" in command(f"{EVALUATE} {on} --seed-run AT/seed29").err
    assert command(EVALUATE.replace("seed17", "seed29") + on).code == 0
    got = command(f"{EVALUATE} {on} --seed-run AT/seed29 --json").json()
    assert list(got["bits"]) == ["model", "guess"]
    assert got["bits"]["guess"] == 4.0
    seeds = got["seeds"]["guess"]
    assert len(seeds["bits"]) == 2
    assert seeds["seed_sd_bits"] == pytest.approx(np.std(list(seeds["bits"].values()), ddof=1))
    itself = command(f"{EVALUATE} {on} --seed-run AT/seed17")
    assert itself.code == 2
    assert "another seed of itself" in itself.err


def earlier_boundaries(tiny: TinyRuns, place: Path) -> Corpus:
    """The same tokenizer, but a test interval that the run was selected on."""
    splits = SplitConfig(
        train_end=TINY_SPLITS.train_end,
        validation=(TINY_SPLITS.train_end, TINY_SPLITS.validation[0]),
        tests=(TINY_SPLITS.validation, TINY_SPLITS.tests[0]),
        seal=TINY_SPLITS.seal,
    )
    return build_corpus(tiny.bars, place / "earlier", CorpusConfig(splits=splits))


def test_refusals_are_clear_and_leave_nothing(
    place: Path, tiny: TinyRuns, command: Callable[[str], Any]
) -> None:
    later = replace(TINY_SPLITS, train_end=TINY_SPLITS.validation[0])
    build_corpus(tiny.bars, place / "later", CorpusConfig(splits=later))
    earlier_boundaries(tiny, place)
    cases = [
        ("corpus --split train", "not held out"),
        ("corpus --split buffer", "not held out"),
        ("corpus --split test-h3", "test-h1, test-h2"),
        ("corpus --split sealed", "--unseal sealed"),
        ("corpus --split sealed --unseal test-h1", "must name the split"),
        ("corpus --split test-h1 --unseal sealed", "must name the split"),
        ("corpus --split test-h1 --baselines AT/nowhere", "no stored losses"),
        ("later --split test-h1", "another tokenizer"),
        ("earlier --split test-h1", "selected on targets of this split"),
        ("nowhere --split test-h1", "not a corpus"),
    ]
    before = sorted(place.joinpath("seed17").iterdir())
    for words, says in cases:
        ran = command(f"evaluate AT/seed17 --corpus AT/{words}")
        assert (ran.code, ran.out) == (2, ""), (words, ran.err)
        assert says in ran.err, (words, ran.err)
    assert sorted(place.joinpath("seed17").iterdir()) == before
    assert not list(place.rglob(LEDGER_NAME))


def test_the_sealed_split_opens_when_it_is_named_and_is_recorded(
    place: Path, command: Callable[[str], Any]
) -> None:
    opened = "--split sealed --unseal sealed --json"
    found = command(EVALUATE + opened).json()
    assert found["looks"] == len(model_accesses(open_corpus(place / "corpus"), "sealed")) == 1
    baselines = "baselines AT/corpus --out AT/b --only frequency"
    context = load_model(place / "seed17").config.history
    scored = command(f"{baselines} {opened} --context {context}").json()
    assert scored["events"] == found["num_events"]
    # All splits that a run was judged on, the sealed one only where it is named.
    Run(place / "seed17").evaluation("validation").touch()
    of_run = f"{baselines} --for AT/seed17"
    assert "pass --unseal sealed" in command(of_run).err
    made = command(f"{of_run} --unseal sealed --json").json()
    assert list(made["splits"]) == ["sealed", "validation"]


def test_it_works_where_only_numpy_and_pytorch_are(place: Path) -> None:
    code = """
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
blocked = ("polars", "pyarrow", "pandas", "lightgbm", "arch", "scipy", "matplotlib", "rich", "fastapi", "pydantic")
sys.modules.update(dict.fromkeys(blocked))
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.scores import read_events
from vaiom.corpus.store import open_corpus
run = Path(sys.argv[1])
result = evaluate_run(run, open_corpus(sys.argv[2]), "validation", device="cpu")
assert len(read_events(run, "validation")) == result.num_events
print(result.confidence_set, sorted(path.name for path in run.glob("ev*")))
"""
    command = [sys.executable, "-c", code, str(place / "seed17"), str(place / "corpus")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None ['evaluation-validation.json', 'events-validation.npz']"


def test_baselines_are_made_for_a_run(place: Path, command: Callable[[str], Any]) -> None:
    run = Run(place / "seed17")
    words = "baselines AT/corpus --only frequency --out"
    score = EVALUATE + "--split validation --baselines"
    assert command(f"{words} AT/others").code == 0
    refused = command(f"{score} AT/others")
    assert refused.code == 2
    assert "--for RUN" in refused.err
    made_for = f"{words} AT/losses --for AT/seed17 --json"
    for split in ("test-h1", "validation"):  # those that it was judged on
        run.evaluation(split).touch()
    made = command(made_for).json()
    assert (list(made["splits"]), made["split"]) == (["test-h1", "validation"], "validation")
    for split in made["splits"]:
        run.evaluation(split).unlink()
    made = command(made_for).json()["splits"]
    assert list(made) == ["validation"]
    judged = command(f"{score} AT/losses --json").json()
    assert judged["bits"]["frequency"] == made["validation"]["bits"]["frequency"]


def test_baselines_are_all_that_can_be_fitted_here_or_those_that_are_named(
    place: Path, command: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ["frequency", "markov"]
    monkeypatch.setattr("vaiom.baselines.base.usual_baselines", lambda: usual)
    ran = command("baselines AT/corpus --context 16 --out AT/all")
    left = ",".join(name for name in BASELINES if name not in (*usual, *SHORTENED))
    assert f"left out: {left}; --only {left} trains them all the same." in ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    bits = {words[0]: float(words[1]) for words in lines if words and words[0] in usual}
    behind = {words[0]: float(words[2]) for words in lines if words and words[0] in usual}
    best = min(bits.values())
    assert behind == pytest.approx({name: own - best for name, own in bits.items()}, abs=2e-4)
    assert "validation: " in ran.out
    named = command(
        "baselines AT/corpus --context 16 --out AT/one --only markov --horizon 4 --json"
    )
    assert "left out" not in named.err
    corpus = open_corpus(place / "corpus").with_target(4)
    rows = corpus.endpoints("validation", 16)
    answer = named.json()
    assert answer["events"] == len(rows)
    expected = losses_of([Markov()], corpus, rows, 16)["markov"].mean()
    assert answer["bits"] == {"markov": pytest.approx(expected)}
