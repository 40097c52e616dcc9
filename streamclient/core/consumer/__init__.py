"""What a consumer of one shard does next: its table, its machine, and what they rest on."""
