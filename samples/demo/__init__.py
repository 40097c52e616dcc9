"""A demo of streamclient on one laptop: it keeps a lake equal to a table while shards split and workers die."""

import logging

# On most Pythons the SDK warns at its import that its native codec is missing. The demo does not need the codec.
logging.getLogger("tablestore").setLevel(logging.ERROR)
