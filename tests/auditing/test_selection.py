"""Proof (g), claim by claim: what it says, word for word, of each ledger, log, checkpoint and
evaluation.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.simulated_market import TINY_SPLITS
from vaiom.auditing import selection
from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.proof import NOT_RUN, AuditConfig, Proof
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import score_baselines
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import event_bits
from vaiom.model.checkpoint import USE
from vaiom.run import Run
from verification.forgeries.catalogue import edit, rewrite_log, swap_checkpoints

TRAINED_AGAIN = "what a training has read is shown by training again (--repeat --full), not here"
EMPTY = hashlib.sha256().hexdigest()


def audited(place: Path, run: str = "seed17") -> AuditedRun:
    return AuditedRun(place / run, open_corpus(place / "corpus"), AuditConfig(seed=3))


def proof_of(run: AuditedRun) -> Proof:
    assert run.corpus.path
    return selection.prove_selection(open_corpus(run.corpus.path), run)


def write_looks(place: Path, *looks: dict[str, Any]) -> list[str]:
    """A ledger of these looks, chained unless they name a `previous`; the hashes before the first
    and after each.
    """
    file, written, heads = place / "corpus/ledger.jsonl", b"", [EMPTY]
    for look in looks:
        whole = {
            "when": "2024-03-01T00:00:00+00:00",
            "corpus_sha256": "0",
            "num_events": 9,
            "run": "seed17",
            **look,
        }
        whole.setdefault("previous", heads[-1])
        written += (
            json.dumps({key: each for key, each in whole.items() if each is not None}).encode()
            + b"\n"
        )
        heads.append(hashlib.sha256(written).hexdigest())
    file.write_bytes(written)
    return heads


def look(split: str = "test-h1", checkpoint: str = "a", **more: Any) -> dict[str, Any]:
    return {"split": split, "checkpoint_sha256": checkpoint, **more}


def test_an_honest_selection_is_told_and_counted_in_full(finished: Path) -> None:
    run = audited(finished)
    proof, ledger = proof_of(run), finished / "corpus/ledger.jsonl"
    bits = run.files.validation_bits()
    events = [
        f"{bits[step]:.6f} Validation bits over 982 events, claimed {bits[step]}" for step in (8, 4)
    ]
    assert proof.findings == []
    assert proof.notes == [
        "test-h1: scored 1 times, by seed17",
        "test-h2: scored 1 times, by seed17",
        f"2 looks in the ledger, SHA-256 {hashlib.sha256(ledger.read_bytes()).hexdigest()}",
        TRAINED_AGAIN,
        f"step 8: {events[0]}",
        f"step 4: {events[1]}",
    ]
    lines, log, checkpoints, looks, evaluations = 2, 8, 2 * (1 + 2 * 982), 2, 3 + 2 * 3
    assert proof.count == lines + log + checkpoints + looks + evaluations


LEDGERS: dict[str, tuple[list[dict[str, Any]], list[str], list[str]]] = {
    "nobody looked": ([], [], ["no look is recorded"]),
    "several models, and a baseline, which nobody selects": (
        [
            look(),
            look(checkpoint="b", run="other"),
            look(checkpoint="", run="markov"),
            look(),
            look("sealed"),
        ],
        [],
        [
            "test-h1: scored 3 times, by seed17 (2), other",
            "sealed: scored 1 times, by seed17",
            "5 looks in the ledger",
        ],
    ),
    "lines from before the chain": (
        [look(previous=None), look(previous=None), look()],
        [],
        [
            "test-h1: scored 3 times",
            "3 looks in",
            "2 looks are older than the chain: nothing shows whether there were",
        ],
    ),
    "a line without a hash after one that has it": (
        [look(previous=None), look(), look(previous=None), look()],
        ["ledger, line 3: lines before it were changed or removed"],
        [
            "test-h1: scored 4 times",
            "4 looks in",
            "2 looks are older than the chain: nothing shows whether there were",
        ],
    ),
    "two at the same time": (
        [look(), look(previous=EMPTY), look("test-h2")],
        [],
        ["test-h1: scored 2", "test-h2: scored 1", "3 looks in"],
    ),
    "a line that was changed": (
        [look(), look(previous="f" * 64), look(), look(previous=EMPTY[::-1])],
        [f"ledger, line {number}: lines before it were changed or removed" for number in (2, 4)],
        ["test-h1: scored 4 times", "4 looks in"],
    ),
}


@pytest.mark.parametrize("which", LEDGERS)
def test_a_ledger_is_a_chain_and_its_looks_are_counted(place: Path, which: str) -> None:
    looks, says, told = LEDGERS[which]
    heads = write_looks(place, *looks)
    proof = selection.prove_selection(open_corpus(place / "corpus"))
    assert (proof.findings, proof.count) == (says, len(looks))
    assert proof.verdict == NOT_RUN or looks
    assert len(proof.notes) == len(told)
    assert all(note.startswith(words) for note, words in zip(proof.notes, told, strict=True))
    assert not looks or any(note.endswith(f", SHA-256 {heads[-1]}") for note in proof.notes)


def of_the_log(run: AuditedRun) -> list[str]:
    """What is found in the training log, the costs of Validation apart."""
    return [each for each in proof_of(run).findings if "its events cost" not in each]


def validated(bits: Any, step: int = 4) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The log says something else of a Validation."""
    return lambda line: line | ({"validation_bits": bits} if line["step"] == step else {})


NO_NUMBER = "metrics.jsonl has a Validation twice, out of order or without a number"
WORSE, BEST = "step 4 with", "step 8 with"
LOGS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any] | None], list[str]]] = {
    "a whole number": (validated(4), [NO_NUMBER]),
    "not a number": (validated(math.nan), [NO_NUMBER]),
    "other steps": (lambda line: line | {"step": 8}, [NO_NUMBER]),
    "another figure of the selected step": (
        validated(3.5, 8),
        ["best.safetensors says step 8 with {own} bits, the run otherwise"],
    ),
    "a better step that was not taken": (
        validated(3.5),
        ["best.safetensors is of step 8, the fewest Validation bits came at 4"],
    ),
    "a step left out": (
        lambda line: line if line["step"] != 4 else None,
        ["metrics.jsonl lacks the Validation of step 4"],
    ),
    "the end left out": (
        lambda line: line if line["step"] < 8 else None,
        [
            "best.safetensors says step 8 with {own} bits, the run otherwise",
            "best.safetensors is of step 8, the fewest Validation bits came at 4",
            "metrics.jsonl ends at step 4 of 8: finish the training (vaiom train --resume)",
        ],
    ),
    "everything left out": (
        lambda line: None,
        [
            "best.safetensors says step 8 with {own} bits, the run otherwise",
            "best.safetensors is of step 8, the fewest Validation bits came at None",
            "metrics.jsonl ends at step 0 of 8: finish the training (vaiom train --resume)",
        ],
    ),
}


@pytest.mark.parametrize("which", LOGS)
def test_the_log_of_a_training_is_whole_and_names_the_best_step(place: Path, which: str) -> None:
    change, says = LOGS[which]
    rewrite_log(place / "seed17", change)
    run = audited(place)
    own = run.checkpoint.provenance.validation_bits
    assert of_the_log(run) == [each.format(own=own) for each in says]


def test_a_log_in_another_order_and_another_kept_model_are_named(place: Path) -> None:
    run = audited(place)
    log = run.files.metrics.read_text()
    run.files.metrics.write_text("".join(reversed(log.splitlines(True))))
    assert of_the_log(run) == [NO_NUMBER]
    run.files.metrics.write_text(log)
    swap = run.files.checkpoint(8)
    swap.write_bytes(run.files.checkpoint(4).read_bytes())
    assert f"best.safetensors is not the checkpoint {swap.name}" in of_the_log(run)


@pytest.mark.parametrize("bits", ["x", [], {}])
def test_a_log_of_other_things_than_numbers_is_a_finding(place: Path, bits: Any) -> None:
    rewrite_log(place / "seed17", validated(bits))
    found = selection.prove_selection(open_corpus(place / "corpus"), audited(place)).findings
    assert found[0] == NO_NUMBER
    assert found[1].startswith(
        f"metrics.jsonl claims {bits} Validation bits at step 4, its events cost "
    )


@pytest.mark.parametrize("times", [0.5, 2.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_claimed_validation_bits_are_those_of_the_events(
    place: Path, times: float, sign: int
) -> None:
    """Up to what rounding explains of their mean."""
    run = audited(place)
    moved = run.files.validation_bits()[4] + sign * times * 1e-3
    rewrite_log(place / "seed17", validated(moved))
    run.rounding = lambda split, precision: SimpleNamespace(mean_bits=1e-3)
    proof = proof_of(run)
    cost = run.files.validation_bits()[4] - sign * times * 1e-3
    said = f"metrics.jsonl claims {moved} Validation bits at step 4, its events cost {cost:.6f}"
    assert (said in proof.findings) == (times > 1)


@pytest.mark.parametrize("times", [0.9, 1.1])
@pytest.mark.parametrize("sign", [1, -1])
def test_of_drawn_events_five_standard_errors_are_allowed(
    place: Path, times: float, sign: int
) -> None:
    """And no fewer than a thousand events are drawn, of every checkpoint that few events leave
    cheap.
    """
    run = audited(place)
    chosen, asked = np.arange(0, 982, 2), []
    run.rounding = lambda split, precision: SimpleNamespace(mean_bits=1e-3)
    run.draw = lambda rows, at_least: asked.append(at_least) or chosen  # type: ignore[method-assign,assignment]
    rows = run.corpus.endpoints("validation", run.history)[chosen]
    losses = event_bits(run.model.predict_proba(run.corpus, rows), run.corpus.target_return[rows])
    margin = 1e-3 + 5 * losses.std() / math.sqrt(len(chosen))
    said = float(losses.mean() + sign * times * margin)
    rewrite_log(place / "seed17", validated(said, 8))
    findings = proof_of(run).findings
    claim = (
        f"metrics.jsonl claims {said} Validation bits at step 8, its events cost "
        f"{losses.mean():.6f}"
    )
    assert (claim in findings) == (times > 1)
    assert asked == [1024, 1024]


def test_a_checkpoint_has_the_name_of_its_step_and_a_line_in_the_log(place: Path) -> None:
    swap_checkpoints(place)
    rewrite_log(place / "seed29", lambda line: line if line["step"] != 4 else None)
    proof = proof_of(audited(place, "seed29"))
    [cost] = [note.split()[2] for note in proof.notes if note.startswith("step 4:")]
    assert {
        "step-0000008.safetensors is the checkpoint of step 4",
        f"metrics.jsonl claims None Validation bits at step 4, its events cost {cost}",
    } < {*proof.findings}


GONE = "test-h2: looked at, but its evaluation is gone (vaiom evaluate)"
NO_LOOK = "test-h1: scored, but the look is not in the corpus's ledger"
OTHER_LEDGER = "test-h1: evaluated on another ledger, or lines of this one were changed or removed"
NO_LEDGER = "test-h1: the evaluation names no ledger, as newer ones do"
COUNTED = "test-h1: scored {} times by then, the ledger says otherwise"
MINE: dict[str, Any] = {"checkpoint": "own"}
LOOKS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str], list[str]]] = {
    "its own look": ([look(**MINE)], {"head": 1, "looks": 1}, [], []),
    "a look that is not there": ([], {"head": 0, "looks": 1}, [NO_LOOK, COUNTED.format(1)], []),
    "another model's": ([look()], {"head": 1, "looks": 1}, [NO_LOOK, COUNTED.format(1)], []),
    "of another split": (
        [look("test-h2", **MINE, run="kept")],
        {"head": 1, "looks": 1},
        [NO_LOOK, COUNTED.format(1)],
        ["test-h2: looked at with this checkpoint as kept, and its evaluation is not here"],
    ),
    "after the ledger that it names": (
        [look(**MINE)],
        {"head": 0, "looks": 1},
        [NO_LOOK, COUNTED.format(1)],
        [],
    ),
    "a ledger that was not": (
        [look(**MINE)],
        {"ledger_sha256": "f", "looks": 1},
        [OTHER_LEDGER],
        [],
    ),
    "no ledger": ([look(**MINE)], {"looks": 1}, [NO_LEDGER], []),
    "no ledger, before there was a chain": ([look(**MINE, previous=None)], {"looks": 1}, [], []),
    "no ledger, the second look": (
        [look(previous=None), look(**MINE), look(previous=None)],
        {"looks": 2},
        [NO_LEDGER],
        [],
    ),
    "no ledger, the look before the chain": (
        [look(), look(**MINE, previous=None), look()],
        {"looks": 2},
        [],
        [],
    ),
    "no count": ([look(**MINE)], {"head": 1, "looks": None}, [COUNTED.format(None)], []),
    "too few": ([look(), look(**MINE)], {"head": 2, "looks": 1}, [COUNTED.format(1)], []),
    "too many": ([look(), look(**MINE)], {"head": 2, "looks": 3}, [COUNTED.format(3)], []),
    "baselines are not counted": (
        [look(checkpoint="", run="markov"), look(**MINE), look("test-h2")],
        {"head": 3, "looks": 2},
        [COUNTED.format(2)],
        [],
    ),
    "others at the same time are": ([look(**MINE), look()], {"head": 2, "looks": 2}, [], []),
    "looked at again": (
        [look(**MINE), look(), look(**MINE)],
        {"head": 3, "looks": 2},
        [],
        ["test-h1: counts 2 looks, and look 3 by then was of the same checkpoint"],
    ),
    "looked at again, and counted": ([look(**MINE), look(**MINE)], {"head": 2, "looks": 2}, [], []),
    "looked at later": ([look(**MINE), look(**MINE)], {"head": 1, "looks": 1}, [], []),
    "a split without its evaluation": (
        [look(**MINE), look("test-h2", **MINE)],
        {"head": 2, "looks": 1},
        [GONE],
        [],
    ),
    "another name for it": (
        [look(**MINE), look("test-h2", **MINE, run="then")],
        {"head": 2, "looks": 1, "run": "runs/then"},
        [GONE],
        [],
    ),
    "the same split under another name": (
        [look(**MINE), look(**MINE, run="kept")],
        {"head": 2, "looks": 2},
        [],
        [],
    ),
    "another model of that name": (
        [look(**MINE), look("test-h2", run="seed17")],
        {"head": 2, "looks": 1},
        [],
        [],
    ),
}


@pytest.mark.parametrize("which", LOOKS)
def test_each_look_has_its_evaluation_and_each_evaluation_its_look(place: Path, which: str) -> None:
    looks, claims, says, told = LOOKS[which]
    run = audited(place)
    own = run.checkpoint.sha256
    looks = [
        each | {"checkpoint_sha256": own} if each["checkpoint_sha256"] == "own" else each
        for each in looks
    ]
    heads = write_looks(place, *looks)
    Run(place / "seed17").evaluation("test-h2").unlink()
    head = {"ledger_sha256": heads[claims["head"]] if claims.get("head") is not None else None}
    edit(
        Run(place / "seed17").evaluation("test-h1"),
        **{**head, **{k: v for k, v in claims.items() if k != "head"}},
    )
    edit(Run(place / "seed17").evaluation("validation"), ledger_sha256=None, looks=None)
    proof = proof_of(run)
    found = [each for each in proof.findings if not each.startswith("ledger, line")]
    assert found == says
    assert [each for each in proof.notes if each in told] == told
    assert len(told) == sum("looked at with" in each or "counts" in each for each in proof.notes)
    assert Evaluation.read(run.files.path, "test-h1").looks == claims["looks"]


def test_a_refit_has_looked_at_what_it_was_selected_on(place: Path) -> None:
    """As many events of a split of the corpus as its own Validation holds, in one look."""
    run, stored = audited(place), open_corpus(place / "corpus")
    run.checkpoint = replace(
        run.checkpoint, provenance=replace(run.checkpoint.provenance, purpose=USE)
    )
    ends = (datetime(2023, 12, 25), datetime(2024, 1, 1), datetime(2024, 1, 10))
    tests = ((ends[1], ends[2]), (ends[2], TINY_SPLITS.tests[1][1]))
    later = replace(TINY_SPLITS, validation=ends[:2], tests=tests)
    corpus = replace(stored.with_splits(later, stored.tokenizer), path=stored.path)
    times = run.corpus.target_timestamps[run.corpus.endpoints("validation", run.history)]
    inside = (times >= np.datetime64(ends[1])) & (times < np.datetime64(ends[2]))
    count = int(inside.sum())
    assert 100 < count < len(times)
    missing = f"test-h1: selected on {count} of its events, but the look is not in the ledger"
    near = [look(num_events=count + 1), look("test-h2", num_events=count)]
    for looks, says in ((near, [missing]), ([*near, look(num_events=count)], [])):
        write_looks(place, *looks)
        proof = selection.prove_selection(corpus, run)
        assert [each for each in proof.findings if "selected on" in each] == says
        assert [each for each in proof.notes if "holds out" in each] == [
            f"selected on {count} events that the corpus holds out as test-h1"
        ]


def test_baselines_that_were_scored_and_are_not_shown_are_named(
    place: Path, tmp_path: Path
) -> None:
    """Whoever leaves out the strongest one has a ledger that names it."""
    corpus, quietly = open_corpus(place / "corpus"), lambda _: nullcontext(lambda *progress: None)
    score_baselines(corpus, ["ewma_t", "frequency"], tmp_path, "test-h1", 16, quietly)
    told = "test-h1: baselines scored before, and not shown: ewma_t"
    assert told not in proof_of(audited(place)).notes  # the evaluation is older
    for baselines, expected in ((None, 1), (tmp_path, 0)):
        evaluate_run(place / "seed17", corpus, "test-h1", baselines=baselines, device="cpu")
        assert proof_of(audited(place)).notes.count(told) == expected
