"""The console: pages in a browser for a local Tablestore or for fleets, and the player of a simulated history."""
