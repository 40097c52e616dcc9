"""The console: a page for the local Tablestore, a fleet and a simulated history."""
