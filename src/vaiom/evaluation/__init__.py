"""Held-out bits per event with paired inference, calibration, risk backtests, and the ledger of
test looks.
"""
