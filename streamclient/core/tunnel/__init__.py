"""The decisions of a tunnel client: the service assigns channels, the client obeys and reports."""
