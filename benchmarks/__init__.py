"""Each benchmark is a ratio against a plain reference beside it, measured in the same run; run from
a checkout.
"""
