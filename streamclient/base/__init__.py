"""The base package: code that every other package may use, and that uses no other package."""
