"""The paper's tables made again: its figures, the runs behind them, verdicts, the page. Run from a
checkout.
"""
