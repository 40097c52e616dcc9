"""The proof that each record is in a destination once."""
