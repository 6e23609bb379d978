"""Errors by audience: what a user can fix says what was expected, what came, where, and the way out."""

from __future__ import annotations


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
