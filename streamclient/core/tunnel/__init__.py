"""The decisions of a tunnel client. The service assigns channels; the client obeys and reports."""
