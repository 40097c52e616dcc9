"""Change records as rows of a table: the rows' columns, types, names and digests."""
