"""The record processor that turns batches of changes into frames, and stores each batch once."""
