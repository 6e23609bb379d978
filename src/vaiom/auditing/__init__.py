"""The proofs: nothing leaked from the future, every number has a known origin."""
