"""Rules that several operations share, independent of stored data: names, rows, keys, reads, table options.

The functions raise ``ServiceError`` with the service's text. Rules that need a table's schema or rows are in the
operations themselves.
"""
