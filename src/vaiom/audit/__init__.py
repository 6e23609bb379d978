"""The proofs: nothing leaked from the future, every number has a known origin."""

import sys

from vaiom import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
