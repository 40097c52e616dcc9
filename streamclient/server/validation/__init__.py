"""Rules that several operations share, independent of stored data: names, rows, keys, reads, table options.

They raise ``ServiceError`` with the service's text. The operations themselves apply rules that need a table's schema or
rows.
"""
