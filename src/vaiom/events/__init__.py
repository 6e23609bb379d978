"""A bar becomes what the model sees and what it must predict."""
