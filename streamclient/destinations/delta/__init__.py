"""A Delta table as a destination, with or without Spark: the table's log, its rows, and its maintenance."""
