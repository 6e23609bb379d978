"""A model learns from Train windows and is selected on Validation."""
