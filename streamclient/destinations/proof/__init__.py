"""The proof that a destination has each record exactly once."""
