"""Errors by audience: what a user can fix says what was expected, what came, where, and the way out."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "train": ("torch", "lightgbm", "arch", "pyarrow"),
    "risk": ("scipy",),
    "report": ("matplotlib", "jinja2"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "feeds": ("ccxt",),
    "ray": ("ray",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}
"""Libraries that forecasts do without, by the extra of the package that brings them."""


class VaiomError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(VaiomError):
    """Something the user can fix; the command line prints it and exits 2."""

    def __init__(
        self, problem: str, *, expected: object = None, got: object = None, where: object = None, fix: str | None = None
    ) -> None:
        self.problem, self.expected, self.got, self.where, self.fix = problem, expected, got, where, fix
        labelled = (("where", where), ("expected", expected), ("got", got), ("try", fix))
        lines = [problem, *(f"  {label + ':':<10}{value}" for label, value in labelled if value is not None)]
        super().__init__("\n".join(lines))


class DataError(UserError):
    """Prices, bar folders or corpora that cannot be used as they are."""


class ConfigError(UserError):
    """An option or configuration value that does not make sense."""


class CheckpointError(UserError):
    """A model file that is damaged, foreign or from another schema."""


def require_installed(*libraries: str) -> None:
    """Libraries that the next step imports, or an error that says which extra brings the first that is missing."""
    for library in libraries:
        if find_spec(library) is None:
            raise not_installed(library)


def not_installed(library: str) -> ConfigError:
    extra = next(extra for extra, brought in EXTRAS.items() if library in brought)
    return ConfigError(f"this needs {library}, which is not installed", fix=f"pip install 'vaiom[{extra}]'")
