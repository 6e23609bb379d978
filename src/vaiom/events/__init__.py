"""Turns bars into the events that a model reads and the targets that it predicts."""
