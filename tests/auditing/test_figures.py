"""Proof (e): every number of an evaluation is recomputed, and no changed one escapes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from training.tiny_runs import TINY
from vaiom.auditing import figures
from vaiom.auditing.figures import _compare_evaluation, _compare_page, prove_figures
from vaiom.auditing.pipeline import AuditedRun
from vaiom.auditing.proof import FAILED, PASSED, AuditConfig, Proof
from vaiom.codec import to_json
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.horizon_scores import HorizonScore
from vaiom.evaluation.inference import compare_seeds
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import find_rows, read_events, write_events
from vaiom.features.fields import CROSS_FIELDS
from vaiom.model.checkpoint import USE, load_checkpoint, save_checkpoint
from vaiom.report.contents import read_run
from vaiom.report.page import render, write_report
from vaiom.run import Run
from vaiom.training.loop import train

ELSEWHERE = ("seed", "step", "looks")
"""Numbers of the file that are no figures of events: proof (f) holds them to checkpoint and ledger.
"""


@pytest.fixture(scope="module")
def reported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with another seed beside it on Validation, and a page."""
    folder = tmp_path_factory.mktemp("reported") / "place"
    shutil.copytree(finished, folder)
    corpus = open_corpus(folder / "corpus")
    evaluate_run(folder / "seed29", corpus, "validation", device="cpu")
    evaluate_run(
        folder / "seed17", corpus, "validation", device="cpu", other_seeds=[folder / "seed29"]
    )
    write_report(folder / "seed17", corpus=folder / "corpus")
    return folder


@pytest.fixture
def spoiled(reported: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled, whose runs lie beside each other elsewhere than they were evaluated."""
    shutil.copytree(reported, tmp_path / "spoiled")
    return tmp_path / "spoiled"


@pytest.fixture
def all_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaiom.auditing.proof.MAX_FINDINGS", 10**6)


def proof_of(place: Path, name: str = "seed17", rescore: int | None = None) -> Proof:
    config = AuditConfig(rescore=rescore, seed=3)
    return prove_figures(AuditedRun(place / name, open_corpus(place / "corpus"), config))


def keep_only(place: Path, split: str) -> Path:
    """One evaluation is enough, and quicker."""
    for file in (place / "seed17").glob("evaluation-*.json"):
        if file.stem != f"evaluation-{split}":
            file.unlink()
    Run(place / "seed17").report.unlink()
    return place / "seed17" / f"evaluation-{split}.json"


def changed(value: Any, path: str, paths: list[str]) -> Any:
    """The same with every number a little larger, and the paths of these."""
    if isinstance(value, dict):
        return {
            key: each if key in ELSEWHERE else changed(each, f"{path}.{key}", paths)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [changed(each, f"{path}[{index}]", paths) for index, each in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    paths.append(path)
    return value + 1 if isinstance(value, int) else value + 1e-6


def test_what_was_left_alone_passes_in_full(reported: Path) -> None:
    proof = proof_of(reported)
    assert proof.findings == []
    assert proof.verdict == PASSED
    assert not any("not recomputed" in note for note in proof.notes)


def test_seeds_that_were_moved_together_are_found_beside_each_other(
    reported: Path, spoiled: Path
) -> None:
    file = keep_only(spoiled, "validation")
    file.write_text(file.read_text().replace(str(reported), "/where/they/lay"))
    proof = proof_of(spoiled)
    assert proof.findings == []
    assert not any("not recomputed" in note for note in proof.notes)


@pytest.mark.parametrize("split", ["validation", "test-h2"])
def test_no_number_of_an_evaluation_can_be_changed(
    spoiled: Path, split: str, all_findings: None
) -> None:
    """All at once: each must be named. Validation has the seeds, the last test all tests
    together.
    """
    file = spoiled / "seed17" / f"evaluation-{split}.json"
    stored = json.loads(file.read_text())
    assert stored["seeds" if split == "validation" else "all_tests"]
    assert stored["confidence_set"]
    assert stored["mixture"]
    Run(spoiled / "seed17").report.unlink()
    paths: list[str] = []
    file.write_text(json.dumps(changed(stored, split, paths)))
    found = {finding.split(":")[0] for finding in proof_of(spoiled).findings}
    assert set(paths) - found == set()
    assert len(paths) > 1_500


def test_the_sample_is_counted_right_and_no_predictor_is_added(spoiled: Path) -> None:
    file = keep_only(spoiled, "validation")
    stored = json.loads(file.read_text())
    stored["sample"]["num_months"] += 1
    stored["bits"]["oracle"] = 3.0
    file.write_text(json.dumps(stored))
    (name, sample) = sorted(proof_of(spoiled).findings)
    assert sample.startswith("validation.sample.num_months: the file says 3")
    assert name == "validation.bits: the file has oracle, which nothing gives"


def test_events_that_are_not_in_the_corpus_are_found(spoiled: Path) -> None:
    keep_only(spoiled, "validation")
    file = spoiled / "seed17/events-validation.parquet"
    pl.read_parquet(file).with_columns(pl.col("target_time").dt.offset_by("13m")).write_parquet(
        file
    )
    assert any(
        "events that the corpus does not have" in finding for finding in proof_of(spoiled).findings
    )


class InHalfPrecision(ModelPredictor):
    """The model on a GPU, as far as rounding goes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.precision = torch.float16


def scored_in_half_precision(
    place: Path, monkeypatch: pytest.MonkeyPatch, run: str = "seed17"
) -> Path:
    """Validation as a GPU would have scored it."""
    with monkeypatch.context() as patched:
        patched.setattr("vaiom.evaluation.evaluate.ModelPredictor", InHalfPrecision)
        evaluate_run(place / run, open_corpus(place / "corpus"), "validation", device="cpu")
    return (
        keep_only(place, "validation")
        if run == "seed17"
        else Run(place / run).evaluation("validation")
    )


def test_half_precision_is_explained_by_the_checkpoint(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scored_in_half_precision(spoiled, monkeypatch)
    proof = proof_of(spoiled)
    assert proof.findings == []
    assert "float16 arithmetic explains" in proof.notes[0]
    assert not any("not recomputed" in note for note in proof.notes)
    # Who claims FP32 is held to it.
    file.write_text(file.read_text().replace('"float16"', '"float32"'))
    assert "losses that are not the checkpoint's" in proof_of(spoiled).findings[0]


def test_a_model_with_an_attention_window_is_scored_again_in_full(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "positions": "rotary",
        "attention_window": 8,
        "steps": 4,
        "fields": (*TINY.model.fields, *CROSS_FIELDS),
    }
    train(
        open_corpus(spoiled / "corpus"),
        TINY.with_changes(**changes),
        spoiled / "window",
        device="cpu",
    )
    file = scored_in_half_precision(spoiled, monkeypatch, "window")
    proof = proof_of(spoiled, "window")
    assert proof.findings == []
    assert "all 982 events scored again" in proof.notes[0]
    stored = json.loads(file.read_text())
    stored["bits_alone"] -= 0.01
    file.write_text(json.dumps(stored))
    assert [finding.split(":")[0] for finding in proof_of(spoiled, "window").findings] == [
        "validation.bits_alone"
    ]
    del stored["bits_alone"]  # as evaluations had none once
    file.write_text(json.dumps(stored))
    assert proof_of(spoiled, "window").findings == []


def test_no_forecast_and_no_risk_figure_of_another_machine_can_be_changed(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch, all_findings: None
) -> None:
    file = scored_in_half_precision(spoiled, monkeypatch)
    stored, paths = json.loads(file.read_text()), []
    parts = {
        name: stored[name]
        for name in ("calibration", "calibration_by", "backtests", "backtests_by")
    }
    file.write_text(json.dumps(stored | changed(parts, "validation", paths)))
    found = {finding.split(":")[0] for finding in proof_of(spoiled).findings}
    assert set(paths) - found == set()
    assert len(paths) > 1_000
    file.write_text(json.dumps(stored))
    events = spoiled / "seed17/events-validation.parquet"
    pl.read_parquet(events).rename({"prob_1": "prob_16", "prob_16": "prob_1"}).write_parquet(events)
    assert any("a probability differs" in finding for finding in proof_of(spoiled).findings)


def test_an_old_file_without_forecasts_is_scored_again(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scored_in_half_precision(spoiled, monkeypatch)
    events = spoiled / "seed17/events-validation.parquet"
    pl.read_parquet(events).drop(pl.selectors.starts_with("prob_")).write_parquet(events)
    stored = json.loads(file.read_text())
    del stored["precision"], stored["ledger_sha256"], stored["baselines"], stored["sample"]
    stored["confidence_set"] = None
    file.write_text(json.dumps(stored))
    proof = proof_of(spoiled)
    assert proof.findings == []
    for left_out in (
        "not recomputed: the PIT and its tests",
        "not compared: sample",
        "not compared: confidence_set",
    ):
        assert any(left_out in note for note in proof.notes)
    # A new file has them.
    file.write_text(json.dumps(stored | {"ledger_sha256": "0"}))
    found = proof_of(spoiled).findings
    assert found[0] == "validation: the forecasts were taken out of the events file"
    assert found[1].startswith("validation.sample.num_assets: the file says None")


def test_what_is_left_out_is_named(reported: Path, spoiled: Path) -> None:
    file = keep_only(spoiled, "validation")
    file.write_text(file.read_text().replace(str(reported / "seed29"), "/nowhere/gone"))
    proof = proof_of(spoiled, rescore=10)
    assert proof.findings == []
    forecasts, seeds, page = proof.notes
    assert "not recomputed: seeds (this split of the run has no scored events" in seeds
    assert "10 of 982 events scored again" in forecasts
    assert page == "the run has no report.html (vaiom report)"


def test_the_page_shows_what_the_files_say(spoiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number in a table, a headline, a figure, and a look that was on the page and is no longer
    in the ledger.
    """
    page = Run(spoiled / "seed17").report
    drawn = {
        found[1]: found[0]
        for found in re.finditer(r'<svg id="(\S+)".*?</svg>', page.read_text(), re.DOTALL)
    }
    monkeypatch.setattr(
        "vaiom.report.drawing.Drawing.to_svg", lambda _, name, alt: drawn[name]
    )  # drawing takes seconds
    bits = json.loads((spoiled / "seed17/evaluation-test-h1.json").read_text())["bits"]["model"]
    text = page.read_text()
    edits = {
        f">{bits:.4f}<": f">{bits - 0.1:.4f}<",
        f"the model needs {bits:.4f}": "the model needs 2.1000",
        "</svg>": '<path d="M 0 0 L 9 9"/></svg>',
    }
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new, 1)
    page.write_text(text)
    ledger = spoiled / "corpus/ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(True)[:-1]))
    says = ["top: says", "headline: says", "provenance: says", "figures: says"]
    found = proof_of(spoiled).findings
    assert len(found) == len(says)
    assert all(any(each in finding for finding in found) for each in says)
    assert "the model needs 2.1000" in found[0]


HEADLINE = '<section id="headline"'
PAGES = {
    "a section twice": lambda page: page.replace(
        HEADLINE, f"{HEADLINE}>Two bits!</section>{HEADLINE}"
    ),
    "another top": lambda page: f'<h1>Two bits!</h1><section id="top"{page}',
    "a figure elsewhere": lambda page: re.sub(
        "(<svg.*?</svg>)(.*)(</section>)", r"\2\1\3", page, flags=re.DOTALL
    ),
    "every figure": lambda page: page.replace("</svg>", "<text>two bits</text></svg>"),
    "a command": lambda page: page.replace("<pre>vaiom train", "<pre>vaiom train GAINS TWO BITS"),
    "a hidden look": lambda page: re.sub(
        "were scored .*? times", "were <!-- could not be read --> scored once", page
    ),
    "other bytes": lambda page: page + "\udcff",
    "no inputs": lambda page: page.replace('id="inputs"', 'id="none"'),
    "inputs twice": lambda page: page.replace(
        "</body>", '<script type="application/json" id="inputs">{}</script></body>'
    ),
    "other inputs": lambda page: page.replace('"corpus_problem": null', '"corpus_problem": 3'),
}


def test_no_part_of_the_page_is_overlooked(spoiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = AuditedRun(spoiled / "seed17", open_corpus(spoiled / "corpus"), AuditConfig(seed=3))
    page, honest = run.files.report, run.files.report.read_text()
    drawn_by = version("matplotlib")
    monkeypatch.setattr(  # drawn once
        "vaiom.auditing.figures.render",
        lambda contents: honest.replace(drawn_by, contents.inputs.matplotlib),
    )
    for how, change in PAGES.items():
        assert change(honest) != honest, how
        page.write_bytes(change(honest).encode(errors="surrogateescape"))
        proof = Proof(claim=prove_figures)
        _compare_page(proof, run)
        assert proof.verdict == FAILED, how
    # Another matplotlib draws otherwise, and the page says which it was: nothing is found, and the
    # reader is told.
    page.write_text(PAGES["every figure"](honest).replace(drawn_by, "1.5"))
    proof = Proof(claim=prove_figures)
    _compare_page(proof, run)
    assert proof.findings == []
    assert "figures: not compared, matplotlib 1.5" in proof.notes[-1]


def test_a_page_that_was_written_without_its_corpus_is_compared(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>"
    )  # drawing takes seconds
    keep_only(spoiled, "validation")
    run = spoiled / "seed17"
    config = Run(run).config.read_text()
    Run(run).config.write_text(config.replace(str(Run(run).corpus_path()), "/gone/<away>"))
    write_report(run)
    Run(run).config.write_text(config)
    assert "The corpus could not be read" in Run(run).report.read_text()
    assert proof_of(spoiled).findings == []
    text = Run(run).report.read_text()
    Run(run).report.write_text(
        text.replace("How often Test was looked at", "How seldom Test was looked at")
    )
    assert "How seldom" in proof_of(spoiled).findings[0]


def test_caveats_horizons_and_the_ledger_are_not_left_out(spoiled: Path) -> None:
    file = keep_only(spoiled, "validation")
    stored = json.loads(file.read_text())
    score = HorizonScore(
        bars=4,
        num_events=9,
        zero_share=0.0,
        bits={"model": 1.0},
        gains={},
        not_fitted=[],
        wider=1.0,
        variance_of_steps=1.0,
        variance_realised=1.0,
        quantiles={},
    )
    changes = {
        "caveats: 1 entries": {"caveats": []},
        "sample.num_assets: the file says None": {"sample": None},
        "the evaluation names no ledger": {"ledger_sha256": None},
        "horizons.safetensors is gone": {"horizons": [to_json(score)]},
    }
    for says, change in changes.items():
        file.write_text(json.dumps(stored | change))
        assert any(says in finding for finding in proof_of(spoiled).findings), says
    Run(spoiled / "seed17").dependence.touch()
    assert any("has no joint figures" in note for note in proof_of(spoiled).notes)


def flatter_the_other_seed(place: Path) -> None:
    file = place / "seed29/events-validation.parquet"
    pl.read_parquet(file).with_columns(pl.col("bits_model") - 0.1).write_parquet(file)


def count_one_model_as_two_seeds(place: Path) -> None:
    shutil.copytree(place / "seed17", place / "seed29", dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (flatter_the_other_seed, "are not its checkpoint's"),
        (count_one_model_as_two_seeds, "not different seeds of one experiment"),
    ],
)
def test_other_seeds_are_what_they_are_said_to_be(
    reported: Path, spoiled: Path, forge: Callable[[Path], None], says: str
) -> None:
    """Their figures follow from the events that are there."""
    file = keep_only(spoiled, "validation")
    forge(spoiled)
    stored = json.loads(file.read_text())
    events, other = (read_events(spoiled / run, "validation") for run in ("seed17", "seed29"))
    both = {
        str(reported / "seed17"): events.bits["model"],
        str(spoiled / "seed29"): other.bits["model"],
    }
    file.write_text(json.dumps(stored | {"seeds": to_json(compare_seeds(events, both))}))
    (found,) = proof_of(spoiled).findings
    assert says in found


def test_a_page_that_hides_looks_or_names_itself_is_found(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>"
    )  # drawing takes seconds
    run = AuditedRun(spoiled / "seed17", open_corpus(spoiled / "corpus"), AuditConfig(seed=3))
    contents = read_run(run.files.path, spoiled / "corpus")
    for changes, says in (
        ({"ledger_sha256": hashlib.sha256().hexdigest()}, "leaves out looks"),
        ({"run": "runs/best of all"}, "says that it was written elsewhere: 'runs/best of all'"),
    ):
        run.files.report.write_text(
            render(replace(contents, inputs=replace(contents.inputs, **changes)))
        )
        proof = Proof(claim=prove_figures)
        _compare_page(proof, run)
        (told,) = (*proof.findings, *proof.notes)
        assert says in told


def test_figures_that_no_page_can_show_are_found(spoiled: Path) -> None:
    file = spoiled / "seed17/evaluation-test-h2.json"
    stored = json.loads(file.read_text())
    stored["calibration"]["tails"] = []
    file.write_text(json.dumps(stored))
    assert any(
        "cannot be made from these files" in finding
        for finding in proof_of(spoiled, rescore=10).findings
    )


@pytest.mark.parametrize(
    "change",
    [{"bits": 3}, {"seeds": {"x": 1}}, {"horizons": [{}]}, {"looks": "2"}, {"baselines": 3}],
)
def test_what_is_no_evaluation_is_refused(spoiled: Path, change: dict[str, Any]) -> None:
    file = keep_only(spoiled, "validation")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match="not an evaluation"):
        proof_of(spoiled)


def page_of(run: AuditedRun) -> Proof:
    proof = Proof(claim=prove_figures)
    _compare_page(proof, run)
    return proof


def audited(place: Path, name: str = "seed17", **options: Any) -> AuditedRun:
    return AuditedRun(place / name, open_corpus(place / "corpus"), AuditConfig(seed=3, **options))


AGAIN = "; a page of another version is written again by `vaiom report`"
OTHER_PARTS = "report.html has other sections or figures than `vaiom report` writes"
NOT_OF_THESE = "report.html is not of these files and this version: "
CHANGED_PAGES: dict[str, tuple[Callable[[str], str], list[str]]] = {
    "as it was": (lambda page: page, []),
    "a section twice": (PAGES["a section twice"], [OTHER_PARTS]),
    "a figure less": (
        lambda page: re.sub("<svg.*?</svg>", "", page, count=1, flags=re.DOTALL),
        [OTHER_PARTS],
    ),
    "a line more": (
        lambda page: page + "\nTwo bits!",
        [f"report.html, {{last}}: says 'Two bits!', the files ''{AGAIN}"],
    ),
    "a line less": (
        lambda page: page.rpartition("\n")[0],
        [f"report.html, {{last}}: says '', the files {{line}}{AGAIN}"],
    ),
    "another headline": (
        lambda page: page.replace(HEADLINE, f"{HEADLINE} x"),
        [f"report.html, headline: says {{headline}}, the files {{was}}{AGAIN}"],
    ),
    "no inputs": (PAGES["no inputs"], [NOT_OF_THESE]),
    "other inputs": (PAGES["other inputs"], [NOT_OF_THESE]),
}


@pytest.mark.parametrize("which", CHANGED_PAGES)
def test_what_a_page_says_otherwise_is_quoted(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    change, says = CHANGED_PAGES[which]
    run = audited(spoiled)
    honest = run.files.report.read_text().rstrip("\n") + "\nthe end"
    monkeypatch.setattr("vaiom.auditing.figures.render", lambda _: honest)
    run.files.report.write_text(change(honest))
    first = honest.partition(HEADLINE)[2].splitlines()[0]
    last = re.findall(r'<section id="(\w+)"', honest)[-1]
    words = {
        "last": last,
        "line": repr("the end"),
        "headline": repr(f" x{first}"[:200]),
        "was": repr(first[:200]),
    }
    proof = page_of(run)
    assert len(proof.findings) == len(says)
    for finding, expected in zip(proof.findings, says, strict=True):
        assert finding.startswith(expected.format(**words)), finding
    where = f"report.html says that it was written elsewhere: {str(run.files.path.parents[2])!r}"
    assert not any(note.startswith(where) for note in proof.notes)
    if not says:
        sections = figures._parts(honest)
        assert proof.count == 1 + sum(1 + text.count("\n") for _, text in sections) + 1


def test_a_page_of_other_files_or_figures_says_why(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = audited(spoiled)
    run.files.report.unlink()
    assert page_of(run).notes == ["the run has no report.html (vaiom report)"]
    assert page_of(run).count == 0
    write_page(run, monkeypatch)

    def fail(_: Any) -> str:
        raise KeyError("tails")

    monkeypatch.setattr("vaiom.auditing.figures.render", fail)
    assert page_of(run).findings == [
        "report.html cannot be made from these files: KeyError: 'tails'"
    ]


def write_page(run: AuditedRun, monkeypatch: pytest.MonkeyPatch, /, **inputs: Any) -> str:
    """A page that says so of its inputs, and is what these would give."""
    monkeypatch.setattr(
        "vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>"
    )  # drawing takes seconds
    assert run.corpus.path
    contents = read_run(run.files.path, run.corpus.path)
    page = render(replace(contents, inputs=replace(contents.inputs, **inputs)))
    run.files.report.write_text(page)
    return page


def test_a_page_knows_the_looks_that_its_evaluations_know_of(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = audited(spoiled)
    heads = figures.ledger_heads(run.corpus)
    evaluations = run.evaluations()
    assert [evaluations[split]["ledger_sha256"] for split in ("test-h1", "test-h2")] == heads[1:3]
    hidden = "report.html leaves out looks that its evaluations know of"
    for head, says in ((heads[2], []), (heads[1], [hidden])):
        write_page(run, monkeypatch, ledger_sha256=head)
        assert page_of(run).findings == says
    # One that no ledger ever had is compared with what there is now.
    page = write_page(run, monkeypatch)
    run.files.report.write_text(page.replace(heads[-1], "f" * 64))
    assert {finding.split(":")[0] for finding in page_of(run).findings} == {
        "report.html, provenance"
    }


def test_a_page_of_another_place_another_corpus_or_matplotlib_is_compared_as_far_as_it_goes(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = audited(spoiled)
    write_page(run, monkeypatch, run="/a/run", corpus="/a/corpus")
    told = "report.html says that it was written elsewhere: '/a/run'; '/a/corpus'"
    proof = page_of(run)
    assert (proof.findings, proof.notes) == ([], [told])
    write_page(run, monkeypatch)
    assert page_of(run).notes == []
    page = write_page(run, monkeypatch, matplotlib="1.5")
    run.files.report.write_text(page.replace("<svg></svg>", "<svg>x</svg>"))
    proof = page_of(run)
    why = (
        f"report.html, figures: not compared, matplotlib 1.5 drew them and this is "
        f"{version('matplotlib')}"
    )
    assert (proof.findings, proof.notes) == ([], [why])
    # The corpus has grown since: what the page shows of it was another.
    write_page(run, monkeypatch)
    grown = replace(
        run.corpus, columns={**run.corpus.columns}, manifest={**run.corpus.manifest, "arrays": {}}
    )
    run.corpus = grown
    if grown.sha256 != run.checkpoint.provenance.corpus_sha256:
        names = ("quality", "provenance")
        notes = [
            f"report.html, {name}: not compared, the corpus is not what it was for the page"
            for name in names
        ]
        assert page_of(run).notes == notes


def evaluation_of(run: AuditedRun, stored: dict[str, Any], split: str = "validation") -> Proof:
    events, proof = read_events(run.files.path, split), Proof(claim=prove_figures)
    rows = find_rows(run.corpus, run.corpus.target_timestamps, events.symbols, events.target_times)
    _compare_evaluation(proof, run, split, rows, events, stored)
    return proof


def test_each_part_of_an_evaluation_is_compared_or_named(reported: Path, spoiled: Path) -> None:
    run = audited(spoiled)
    stored = run.evaluations()["validation"]
    run.files.dependence.touch()
    no_joint = "validation: the evaluation has no joint figures, and dependence.json is there"
    proof = evaluation_of(run, stored)
    assert (proof.findings, proof.notes[1:]) == ([], [no_joint])
    run.files.dependence.unlink()
    for change, says, notes in (
        ({}, [], []),
        (
            {"sample": None, "ledger_sha256": None},
            ["validation: the evaluation names no ledger"],
            ["validation: not compared: sample"],
        ),
        ({"ledger_sha256": None}, ["validation: the evaluation names no ledger"], []),
        ({"sample": None}, ["validation.sample.num_assets: the file says None, recomputed 2"], []),
        (
            {"corpus_sha256": "0", "zero_share": 0.5},
            [],
            ["validation: not recomputed, the corpus has grown since: zero_share"],
        ),
        ({"zero_share": 0.5}, ["validation.zero_share: the file says 0.5"], []),
        ({"bits_alone": 3.0}, ["validation.bits_alone: the file says 3.0, recomputed None"], []),
    ):
        proof = evaluation_of(run, stored | change)
        assert proof.notes[1:] == notes
        assert [
            finding.startswith(words) for finding, words in zip(proof.findings, says, strict=False)
        ] == [True] * len(says)
        assert bool(proof.findings) == bool(says)
    del stored["bits_alone"]
    assert evaluation_of(run, stored).findings == []


def test_all_tests_together_are_those_of_the_tests(spoiled: Path) -> None:
    run = audited(spoiled)
    stored = run.evaluations()["test-h2"]
    assert evaluation_of(run, stored, "test-h2").findings == []
    stored["all_tests"][0]["gain"]["gain_bits"] += 1e-6
    found = evaluation_of(run, stored, "test-h2").findings
    assert [finding.split(":")[0] for finding in found] == ["test-h2.all_tests[0].gain.gain_bits"]


def test_seeds_are_different_models_of_one_recipe(reported: Path, spoiled: Path) -> None:
    run, other = audited(spoiled), Run(spoiled / "seed29")
    stored = run.evaluations()["validation"]
    not_seeds = "validation: seeds: not different seeds of one experiment"
    own, theirs = (read_events(spoiled / name, "validation") for name in ("seed17", "seed29"))
    best, checkpoint = other.best.read_bytes(), load_checkpoint(other.best)

    def found(name: str = str(reported / "seed29")) -> list[str]:
        bits = {
            str(reported / "seed17"): own.bits["model"],
            name: read_events(other.path, "validation").bits["model"],
        }
        return evaluation_of(run, stored | {"seeds": to_json(compare_seeds(own, bits))}).findings

    name = str(spoiled / "seed29")
    assert found() == found(name) == []
    # Its losses, not its weights; another recipe; the same seed.
    for change, says in (
        ({"train": checkpoint.provenance.train | {"learning_rate": 0.5}}, [not_seeds]),
        ({"seed": 17}, [not_seeds]),
        ({"seed": 30}, []),
    ):
        save_checkpoint(
            other.best,
            checkpoint.model,
            checkpoint.tokenizer,
            replace(checkpoint.provenance, **change),
        )
        assert found(name) == says, change
    other.best.write_bytes(run.files.best.read_bytes())
    write_events(other.path, "validation", replace(theirs, bits=own.bits, probs=own.probs))
    assert found(name) == [not_seeds]
    other.best.write_bytes(best)
    assert found(name) == [f"validation: seeds: the losses of {name} are not its checkpoint's"]


def test_an_evaluation_is_compared_in_all_its_parts(
    spoiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with what it needs, once."""
    asked: list[tuple[Any, ...]] = []
    for name in (
        "_compare_evaluation",
        "_compare_baselines",
        "_compare_scored_forecasts",
        "_compare_page",
    ):

        def note(proof: Proof, *args: Any, name: str = name) -> None:
            asked.append((name, *args))

        monkeypatch.setattr(figures, name, note)
    run = audited(spoiled)
    for folder in ("flat", "tilted"):
        (run.files.forecasts / folder).mkdir(parents=True)
        (run.files.forecasts / folder / "evaluation-test-h1.json").touch()
    proof, evaluations = prove_figures(run), run.evaluations()
    assert (proof.findings, proof.notes, proof.count) == ([], [], 2 * 3 + 1)
    expected: list[tuple[Any, ...]] = []
    for split, stored in evaluations.items():
        events = read_events(run.files.path, split)
        expected.append(("_compare_evaluation", split, len(events), stored))
        expected.append(("_compare_baselines", split, len(events), stored["baselines"], {"model"}))
    short = [
        (name, split, len(rows), *rest)
        for name, _, split, rows, _, *rest in (each for each in asked if len(each) > 4)
    ]
    assert short == expected
    others = [
        (name, folder.path.name, split)
        for name, _, folder, split in (each for each in asked if len(each) == 4)
    ]
    assert others == [
        ("_compare_scored_forecasts", folder, "test-h1") for folder in ("flat", "tilted")
    ]
    assert asked[-1] == ("_compare_page", run)
    apart = "all tests were scored, and no evaluation has the figures of all of them together"
    gone = "test-h1: figures of horizons, and horizons.safetensors is gone (vaiom horizons)"
    events = run.files.events("test-h1")
    score = HorizonScore(
        bars=4,
        num_events=9,
        zero_share=0.0,
        bits={"model": 1.0},
        gains={},
        not_fitted=[],
        wider=1.0,
        variance_of_steps=1.0,
        variance_realised=1.0,
        quantiles={},
    )
    for split, change in (
        ("test-h1", {"all_tests": None, "horizons": [to_json(score)]}),
        ("test-h2", {"all_tests": None}),
    ):
        file = run.files.evaluation(split)
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert prove_figures(run).findings == [gone, apart]
    run.files.horizons.touch()
    assert prove_figures(run).findings == [apart]
    asked.clear()
    pl.read_parquet(events).with_columns(pl.col("target_time").dt.offset_by("13m")).write_parquet(
        events
    )
    assert prove_figures(run).findings == ["test-h1: events that the corpus does not have", apart]
    assert {each[2] for each in asked if each[0] == "_compare_evaluation"} == {
        "test-h2",
        "validation",
    }
    # Of one test alone there is nothing together.
    run.files.evaluation("test-h2").unlink()
    assert prove_figures(run).findings == ["test-h1: events that the corpus does not have"]


def test_a_run_without_an_evaluation_says_why(finished: Path) -> None:
    run = audited(finished, "seed29")
    proof = prove_figures(run)
    assert (proof.notes, proof.count) == (
        ["not run: the run has no evaluation (vaiom evaluate)"],
        0,
    )
    run.checkpoint = replace(
        run.checkpoint, provenance=replace(run.checkpoint.provenance, purpose=USE)
    )
    assert prove_figures(run).notes == [
        "not run: a refit is for use, and nothing was held out of it"
    ]
