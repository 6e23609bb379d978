"""How well forecasts did: held-out bits per event with paired inference, calibration, risk
backtests, and the ledger of test accesses.
"""
