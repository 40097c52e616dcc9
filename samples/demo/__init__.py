"""The main job on one laptop: a changing table, shards that split and merge, a fleet that fails, and an equal lake."""

import logging

# On most Pythons the SDK warns at import that its native codec is missing, which does not concern a demo.
logging.getLogger("tablestore").setLevel(logging.ERROR)
