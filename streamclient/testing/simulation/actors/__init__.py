"""The actors of a history: workers of this package, workers of the Java client, operators."""
