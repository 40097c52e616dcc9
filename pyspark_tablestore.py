"""The name by which Spark finds the data source ``tablestore`` without ``spark.dataSource.register``.

At the first use of a data source in Python, a session imports every top-level module whose name begins with
``pyspark_``, and registers its ``DefaultSource``. An import that fails would fail that use, whichever source it is of.
So where the source cannot be used, because a package is missing or Spark is older than 4.2, this module is empty.
"""

from contextlib import suppress

with suppress(Exception):
    from streamclient.spark import TablestoreDataSource as DefaultSource

    __all__ = ["DefaultSource"]
