"""`vaiom audit`: its table, its JSON object, its exit codes, and trainings that repeat to
the bit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command_line import Vaiom, listing, require_refusal
from vaiom.auditing.repeat import prove_repeat
from vaiom.corpus.store import open_corpus
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run
from vaiom.training.loop import train
from verification.forgeries.catalogue import edit, forget_the_looks

NEED_BARS = ["rebuild", "prices", "a. future", "b. refit"]


def test_without_bars_it_says_what_it_could_not_prove(finished: Path, vaiom: Vaiom) -> None:
    ran = vaiom("audit", finished / "corpus", "--context", 16)
    assert ran.code == 0
    assert ran.out.count("not run: needs --bars") == len(NEED_BARS)
    got = vaiom("audit", finished / "seed17", "--json").json()
    verdicts = {proof["name"]: proof["verdict"] for proof in got["proofs"]}
    assert [name for name, verdict in verdicts.items() if verdict == "not run"] == NEED_BARS
    assert got["passed"]
    assert sorted(verdicts.values()) == ["not run"] * 4 + ["passed"] * 7


def test_with_bars_everything_of_a_corpus_is_proven_and_nothing_is_written(
    place: Path, vaiom: Vaiom
) -> None:
    before = listing(place)
    words = ["--bars", place / "bars", "--context", 16, "--cuts", 2, "--seed", 3, "--json"]
    got = vaiom("audit", place / "corpus", *words).json()
    assert {proof["verdict"] for proof in got["proofs"]} == {"passed"}
    assert all(proof["count"] for proof in got["proofs"])
    assert listing(place) == before


def test_a_failed_proof_is_exit_1_with_the_reason(place: Path, vaiom: Vaiom) -> None:
    evaluation = place / "seed17/evaluation-validation.json"
    bits = json.loads(evaluation.read_text())["bits"]
    edit(evaluation, bits=bits | {"model": bits["model"] - 1e-6})
    words = ["audit", place / "seed17", "--corpus", place / "corpus"]
    ran = vaiom(*words, "--json")
    assert ran.code == 1
    got = json.loads(ran.out)
    assert not got["passed"]
    (failed,) = (proof for proof in got["proofs"] if proof["verdict"] == "failed")
    assert failed["name"] == "e. evaluation"
    assert failed["findings"][0].startswith("validation.bits.model: the file says")
    forget_the_looks(place)
    ran = vaiom(*words)
    assert ran.code == 1
    assert ran.out.count("FAILED") == 2
    assert "not in the corpus's ledger" in ran.out


def test_a_run_without_an_evaluation_says_so(finished: Path, vaiom: Vaiom) -> None:
    ran = vaiom("audit", finished / "seed29")
    assert ran.code == 0
    assert "the run has no evaluation" in ran.out


def test_what_cannot_be_audited_is_refused(place: Path, vaiom: Vaiom) -> None:
    require_refusal(vaiom("audit", place / "bars"), "neither a corpus nor a run")
    require_refusal(
        vaiom("audit", place / "corpus", "--baselines", "guess"), "unknown baseline", "frequency"
    )
    require_refusal(
        vaiom("audit", place / "corpus", "--bars", place / "nowhere"), "no such bar folder"
    )
    require_refusal(vaiom("audit", "--repeat", place / "corpus"), "does not say")
    array = next((place / "corpus").rglob("sigma20.npy"))
    array.write_bytes(array.read_bytes()[:-1] + b"\x01")
    require_refusal(vaiom("audit", place / "corpus"), "damaged", "sigma20.npy")


def test_a_training_repeats_to_the_bit_and_to_the_run_itself(finished: Path, vaiom: Vaiom) -> None:
    ran = vaiom("audit", "--repeat", finished / "seed17", "--full", "--json")
    (proof,) = ran.json()["proofs"]
    assert proof["verdict"] == "passed"
    assert "largest difference of a parameter 0.0e+00" in proof["notes"][0]
    assert proof["notes"][1] == "the run's own best.safetensors is the same"
    first = vaiom("audit", "--repeat", finished / "seed29")
    assert first.code == 0
    assert "passed" in first.out


def test_trainings_that_differ_do_not_pass(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter((1, 2))

    def restless(corpus, experiment, run, **words):
        return train(corpus, experiment.with_changes(seed=next(seeds)), run, **words)

    monkeypatch.setattr("vaiom.auditing.repeat.train", restless)
    proof = prove_repeat(finished / "seed17", open_corpus(finished / "corpus"))
    assert len(proof.findings) == 1
    assert load_checkpoint(Run(finished / "seed17").best).sha256[:16] not in proof.findings[0]


def test_a_machine_without_dataframes_audits_what_needs_no_bars(place: Path) -> None:
    code = f"""
import sys
for name in ("polars", "pyarrow", "pandas", "lightgbm", "arch", "fastapi", "pydantic"):
    sys.modules[name] = None
from pathlib import Path
from vaiom.auditing.audit import audit_path
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.corpus.store import open_corpus
place = Path({str(place)!r})
evaluate_run(place / "seed29", open_corpus(place / "corpus"), "test-h1", device="cpu")
proofs = audit_path(place / "seed29", corpus=place / "corpus")
print([proof.verdict for proof in proofs], [proof.findings for proof in proofs if proof.findings])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.strip() == f"{['not run'] * 4 + ['passed'] * 7} []", ran.stderr


def test_a_packaged_model_is_audited_by_its_name_and_an_edited_figure_is_found(
    tmp_path: Path,
) -> None:
    from vaiom.auditing.packaged import prove_package
    from vaiom.run import packaged_models

    folder = tmp_path / "model"
    shutil.copytree(packaged_models()["fx-1h-evidence"], folder)
    assert prove_package(folder).findings == []
    edited = next(folder.glob("evaluation-*.json"))
    edited.write_text(edited.read_text().replace("0.", "0.1", 1))
    assert (
        prove_package(folder).findings[0] == f"{edited.name} is not the file that about.json lists"
    )
