"""Rules that several operations share, whatever the tables hold: names, rows, keys, reads, table options.

What they refuse is a ``ServiceError`` with the service's text. Rules that need a table's schema or rows are applied
where the operation acts.
"""
