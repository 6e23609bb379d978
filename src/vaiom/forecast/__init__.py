"""Forecasts from bars: the distribution of the next return."""
