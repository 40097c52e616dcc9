"""Who acts in a history: workers of this package, workers of the Java client, operators."""
