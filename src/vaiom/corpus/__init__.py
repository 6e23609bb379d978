"""Features, targets, buckets and splits of many series, as a folder of memory-mapped arrays."""
