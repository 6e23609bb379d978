"""Bars become the inputs that a model reads, the same in batch and live.

`fields` defines every input once. `quantities` and `recursions` work out what the formulas read,
`rows` makes stored columns of bars, `cross` reads other assets, `inputs` makes a model's arrays of
stored columns, and `events` says which rows may be forecast.
"""
