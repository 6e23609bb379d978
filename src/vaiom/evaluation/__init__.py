"""Held-out bits per event, calibration, and what the true law would have scored."""
