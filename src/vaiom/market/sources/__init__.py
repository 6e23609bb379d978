"""One file per format: each turns a file of another tool into a bar table."""
