"""Tablestore as a data source of PySpark: a planner of batches, readers of partitions, and a writer of tables."""
