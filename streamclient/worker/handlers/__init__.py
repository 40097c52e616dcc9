"""Functions and async processors as the processors of shards."""
