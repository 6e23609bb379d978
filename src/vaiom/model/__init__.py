"""The network: windows of events in, the distribution of the next return out."""
