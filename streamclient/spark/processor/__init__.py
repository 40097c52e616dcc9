"""The record processor that brings batches of changes into frames, and stores each batch once."""
