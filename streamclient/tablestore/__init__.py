"""The official SDK as this package uses it."""
