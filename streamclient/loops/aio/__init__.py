"""Loops over changes in an event loop. Programs import ``streamclient.aio``."""
