"""Measurements that the documentation quotes. ``make bench`` prints all of them in one table, from one run."""
