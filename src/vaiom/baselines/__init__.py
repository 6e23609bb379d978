"""Train-fitted distributions over return buckets that a model must beat."""
