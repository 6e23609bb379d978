"""Bars come in, the distribution of the next return comes out."""
