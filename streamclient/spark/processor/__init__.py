"""The record processor that stores batches of changes exactly once, with Spark frames for transforms and sinks."""
