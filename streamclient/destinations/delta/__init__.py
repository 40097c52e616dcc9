"""A Delta table as a destination, with Spark or without: its log, its rows, its upkeep."""
