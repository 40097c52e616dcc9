"""Tunnel clients in simulated time: the production session, against the local server's own tunnels."""
