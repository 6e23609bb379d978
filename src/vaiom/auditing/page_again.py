"""The report of a run, written again and compared with the page that lies in it.

An `AuditedRun` enters; findings go into a proof. The page names the inputs that are no files of the
run; with these, and the looks that its ledger had then, it must come out the same, word by word and
figure by figure.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import zip_longest

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.proof import Proof
from vaiom.codec import from_json
from vaiom.errors import UserError
from vaiom.evaluation.access_ledger import is_recorded, ledger_heads
from vaiom.report.contents import Inputs, RunContents, read_run
from vaiom.report.page import render
from vaiom.run import REPORT_NAME

FIGURES = "figures"
INPUTS = re.compile(r'<script type="application/json" id="inputs">(.*?)</script>')
QUOTED = 200
"""Characters of a line that are quoted."""


def compare_page(proof: Proof, run: AuditedRun) -> None:
    """The report must be what `vaiom report` writes from the run's files and the page's inputs.

    Figures are compared where the same matplotlib draws them, and parts that show the corpus where
    it is still what it was. Everything else must be the same to the character.
    """
    if not run.files.report.is_file():
        proof.note(f"the run has no {REPORT_NAME} (vaiom report)")
        return
    page = run.files.report.read_text(errors="replace")
    try:
        inputs = from_json(Inputs, json.loads("".join(INPUTS.findall(page))))
        now = read_run(run.files.path, run.corpus.path)
    except (UserError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0]
        proof.check(False, f"{REPORT_NAME} is not of these files and this version: {why}")
        return
    _note_places(proof, run, inputs, now.inputs)
    contents = _contents_then(proof, run, inputs, now)
    try:
        expected = _parts(render(contents))
    except Exception as error:  # figures that make no sense together
        why = f"{type(error).__name__}: {error}"
        proof.check(False, f"{REPORT_NAME} cannot be made from these files: {why}")
        return
    skipped = {}
    grown = run.corpus.sha256 != run.checkpoint.provenance.corpus_sha256
    if inputs.corpus and grown:
        why = "the corpus is not what it was for the page"
        skipped = {"quality": why, "provenance": why}
    if now.inputs.matplotlib != inputs.matplotlib:
        drew = f"matplotlib {inputs.matplotlib} drew them and this is {now.inputs.matplotlib}"
        skipped[FIGURES] = drew
    for name, why in skipped.items():
        proof.note(f"{REPORT_NAME}, {name}: not compared, {why}")
    _compare_parts(proof, expected, _parts(page), skipped.keys())


def _note_places(proof: Proof, run: AuditedRun, inputs: Inputs, now: Inputs) -> None:
    """Say where a page says that it was written, if nothing else knows of that place."""
    known = {*vars(now).values()}
    for stored in run.evaluations().values():
        known |= {stored["run"], stored["corpus"]}
    told = [inputs.run, inputs.corpus, inputs.corpus_problem]
    unknown = [repr(text) for text in told if text not in known]
    if unknown:
        elsewhere = "; ".join(unknown)
        proof.note(f"{REPORT_NAME} says that it was written elsewhere: {elsewhere}")


def _contents_then(proof: Proof, run: AuditedRun, inputs: Inputs, now: RunContents) -> RunContents:
    """What the page was made from: the run's files, with the looks that the ledger had then.

    Looks after the page was written are not on it; those that its evaluations know of must be.
    """
    heads = ledger_heads(run.corpus)
    head = heads[-1]
    if inputs.ledger_sha256 in heads:
        head = inputs.ledger_sha256
        later = heads[heads.index(head) + 1 :]
        hidden = []
        for split, stored in run.evaluations().items():
            if is_recorded(run.corpus, split) and stored["ledger_sha256"] in later:
                hidden.append(split)
        proof.check(not hidden, f"{REPORT_NAME} leaves out looks that its evaluations know of")
    then = replace(inputs, ledger_sha256=head if inputs.corpus else None)
    return replace(now, inputs=then, corpus=now.corpus if inputs.corpus else None)


def _parts(page: str) -> list[tuple[str, str]]:
    """The sections of a page by name, without figures, then each figure."""
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    text = re.sub(r"<svg.*?</svg>", "<svg>", page, flags=re.DOTALL)
    first, *rest = re.split(r'<section id="(\w+)"', text)
    parts = [("top", first), *zip(rest[::2], rest[1::2], strict=True)]
    return parts + [(FIGURES, figure) for figure in figures]


def _compare_parts(
    proof: Proof,
    expected: list[tuple[str, str]],
    stored: list[tuple[str, str]],
    skipped: object,
) -> None:
    """Each part must be there with the same text; the first line that differs is quoted."""
    names = [name for name, _ in expected]
    problem = f"{REPORT_NAME} has other sections or figures than `vaiom report` writes"
    if not proof.check(names == [name for name, _ in stored], problem):
        return
    for (name, ours), (_, theirs) in zip(expected, stored, strict=True):
        if name in skipped:  # type: ignore[operator]
            continue
        says, files_say = _first_difference(theirs, ours)
        problem = (
            f"{REPORT_NAME}, {name}: says {says!r}, the files {files_say!r}; a page of another "
            f"version is written again by `vaiom report`"
        )
        proof.check(ours == theirs, problem, ours.count("\n") + 1)


def _first_difference(one: str, other: str) -> tuple[str, str]:
    """The first lines that differ, as far as they are quoted."""
    for pair in zip_longest(one.splitlines(), other.splitlines(), fillvalue=""):
        if pair[0] != pair[1]:
            return pair[0][:QUOTED], pair[1][:QUOTED]
    return "", ""
