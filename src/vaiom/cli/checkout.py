"""`vaiom bench` and `vaiom reproduce`: commands of a checkout, which no wheel holds, under the program's name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import typer

FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Words, options and --help all go to the command behind."""


def bench(context: typer.Context) -> None:
    """Measure speed and memory against plain references; run it on a quiet machine."""
    _forward("benchmarks", context)


def reproduce(context: typer.Context) -> None:
    """Run the paper's experiments on your corpora and print its tables with both columns."""
    _forward("reproduction", context)


def _forward(package: str, context: typer.Context) -> None:
    """Run `python -m PACKAGE` of the checkout that this program comes from, or of the current folder."""
    from vaiom.errors import ConfigError

    roots = (Path(__file__).parents[3], Path.cwd())
    parts = (f"{package}/__main__.py", "src/vaiom/__init__.py")
    root = next((root for root in roots if all((root / part).is_file() for part in parts)), None)
    if root is None:
        raise ConfigError(
            f"`{context.command_path}` needs a checkout of the repository",
            expected=f"a folder {package}",
            where=Path.cwd(),
            fix="git clone the repository, pip install -e it, and run the command there",
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    import_module(f"{package}.__main__").main(context.args, context.command_path)
