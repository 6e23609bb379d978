"""A simulated market whose true distribution of the next return is known, and the oracle that
predicts with it.
"""
