"""Commands of the first hour: samples, tables, changes as they come, and a worker from a shell."""
