"""The decisions of workers, consumers and tunnel clients.

The code of this package reads no clock, starts no thread, writes no log and does no I/O. Events, the present time and
random number generators come from the caller.
"""
