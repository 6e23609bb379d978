"""Windows of events become the distribution of the next return."""
