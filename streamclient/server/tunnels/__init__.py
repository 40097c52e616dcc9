"""The Tunnel Service: tunnels, their channels, the clients that share them, and their reads."""
