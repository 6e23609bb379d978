"""The report of a run: findings, their uncertainty, and their limits."""
