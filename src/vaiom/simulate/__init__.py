"""A simulated market whose true distribution of the next return is known, and the oracle that predicts with it."""

import sys

from vaiom import CallableRoom

sys.modules[__name__].__class__ = CallableRoom
