"""Simulations of tunnel clients: the production session, against the tunnels of the local server."""
