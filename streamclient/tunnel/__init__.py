"""Consume a table through the Tunnel Service, which itself shares the channels out among the clients."""
