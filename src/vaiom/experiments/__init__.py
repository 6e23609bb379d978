"""Named experiments: a run is a few lines over its parent."""
