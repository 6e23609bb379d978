"""Stored rows of many assets, what Train fits on them, their splits and their targets."""
