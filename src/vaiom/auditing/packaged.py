"""The proof of a packaged model: its files are those that its `about.json` lists.

The folder of a packaged model enters, a proof leaves.
"""

from __future__ import annotations

from pathlib import Path

from vaiom.auditing.proof import Proof, claim
from vaiom.errors import UserError
from vaiom.evaluation.record import Evaluation
from vaiom.experiments.package import read_origin
from vaiom.files import sha256_file
from vaiom.model.checkpoint import load_checkpoint
from vaiom.run import Run


@claim("package", "every file is the one that about.json lists, evaluations are of the weights")
def prove_package(proof: Proof, folder: Path) -> None:
    """Compare hashes of all files, and of whom each evaluation says that it is."""
    files = Run(folder)
    listed = read_origin(folder).files
    proof.check(bool(listed), f"{files.about.name} lists no files: `vaiom package` writes them")
    present = {file.name for file in folder.iterdir() if file.is_file()} - {files.about.name}
    for name in sorted({*listed, *present}):
        same = name in present and sha256_file(folder / name) == listed.get(name)
        proof.check(same, f"{name} is not the file that {files.about.name} lists")
    checkpoint = load_checkpoint(files.best)
    for split in files.evaluated_splits():
        try:
            Evaluation.read(folder, split, checkpoint.sha256)
        except UserError as error:
            proof.check(False, f"{split}: {error.problem}")
        else:
            proof.check(True, "")
    proof.note(
        "not run: its figures are not computed again, which needs the run; hashes that were "
        "rewritten too show only against published ones"
    )
    proof.note(f"SHA-256 of {files.about.name}: {sha256_file(files.about)}")
