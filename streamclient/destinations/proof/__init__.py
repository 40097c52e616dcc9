"""The proof that a destination stores each record exactly once."""
