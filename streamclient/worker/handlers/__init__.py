"""Adapters by which functions and async processors serve as the processors of shards."""
