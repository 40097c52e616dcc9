"""Tablestore as a data source of PySpark: planner, readers of partitions, and the writer of tables."""
