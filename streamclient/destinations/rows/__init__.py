"""Changes as rows of a table: columns, types, names, digests."""
