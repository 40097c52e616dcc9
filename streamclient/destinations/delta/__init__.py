"""A Delta table as a destination, with or without Spark: its log, its rows, its maintenance."""
