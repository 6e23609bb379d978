"""The package's errors.

Those that a user can fix say what was expected, what came, where, and a way out.
"""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "train": ("torch", "lightgbm", "arch", "pyarrow"),
    "risk": ("scipy",),
    "report": ("matplotlib", "jinja2"),
    "serve": ("fastapi", "uvicorn", "httptools", "prometheus_client"),
    "feeds": ("ccxt",),
    "ray": ("ray",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}
"""Libraries that forecasts do not need, by the extra that installs them."""


class VaiomError(Exception):
    """Base of all errors that this package raises on purpose."""


class UserError(VaiomError):
    """Something the user can fix; the command line prints it and exits 2."""

    def __init__(
        self,
        problem: str,
        *,
        expected: object = None,
        got: object = None,
        where: object = None,
        fix: str | None = None,
    ) -> None:
        self.problem = problem
        self.expected = expected
        self.got = got
        self.where = where
        self.fix = fix
        lines = [problem]
        for label, value in (("where", where), ("expected", expected), ("got", got), ("try", fix)):
            if value is not None:
                lines.append(f"  {label + ':':<10}{value}")
        super().__init__("\n".join(lines))


class DataError(UserError):
    """Prices, bar folders or corpora that cannot be used."""


class ConfigError(UserError):
    """An invalid option or setting."""


class CheckpointError(UserError):
    """A model file that is damaged, foreign or of another schema."""


def require_installed(*libraries: str) -> None:
    """Raise an error that names the extra to install, if one of these libraries is missing."""
    for library in libraries:
        if find_spec(library) is None:
            raise not_installed(library)


def not_installed(library: str) -> ConfigError:
    """The error for a library that is missing; it names the extra that installs it."""
    extra = next(name for name, libraries in EXTRAS.items() if library in libraries)
    problem = f"this needs {library}, which is not installed"
    return ConfigError(problem, fix=f"pip install 'vaiom[{extra}]'")
