"""The loops of ``streamclient.aio``, which run in an event loop. Programs import ``streamclient.aio``."""
