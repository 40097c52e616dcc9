"""The main job on one laptop: a changing table, shards that split and merge, a fleet that fails, and an equal lake."""
