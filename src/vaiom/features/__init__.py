"""Bars become the inputs that a model reads: every field defined once, causal, the same in batch
and live.
"""
