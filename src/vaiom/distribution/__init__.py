"""The law of a return as users get it: of one asset, of several together, of a portfolio."""
