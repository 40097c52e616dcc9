"""Changes as rows: columns, types, names, digests."""
