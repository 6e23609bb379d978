"""A simulated market whose true distribution of the next return is known, and the oracle that predicts with it."""

from vaiom import make_callable

make_callable(__name__)
