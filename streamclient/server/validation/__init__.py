"""Checks of requests that several operations share: names, rows, keys, reads, table options.

The checks do not depend on stored data. They raise ``ServiceError`` with the service's text. Checks that need a table's
schema or rows are in the operations themselves.
"""
