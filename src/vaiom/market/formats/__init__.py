"""Files of other tools: one reader per family, then one way from their rows to bars."""
