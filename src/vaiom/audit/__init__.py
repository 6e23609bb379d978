"""The proofs: nothing leaked from the future, every number has a known origin."""

from vaiom import make_callable

make_callable(__name__)
