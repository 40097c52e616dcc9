"""The fold of changes into the rows that result from them, by the same rules for mirrors and for frames in Spark.

Pure.
"""
