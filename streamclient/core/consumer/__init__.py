"""The decisions of a shard's consumer: its transition table, its state machine, and their values."""
