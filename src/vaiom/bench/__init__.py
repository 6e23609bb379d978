"""Each benchmark prints a ratio against a plain reference beside it, measured in the same run."""
