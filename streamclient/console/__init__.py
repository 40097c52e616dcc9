"""The console: a page in the browser for the local Tablestore, and the player of a simulated history."""
