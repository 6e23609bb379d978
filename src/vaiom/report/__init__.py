"""The report of a run: what was found, how sure it is, and what it does not mean."""
