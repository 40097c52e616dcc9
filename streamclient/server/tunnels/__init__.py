"""The Tunnel Service of the local Tablestore: tunnels, channels, clients that share the channels, and reads."""
