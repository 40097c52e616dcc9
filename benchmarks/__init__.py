"""Measurements that the documentation quotes. ``make bench`` prints them all, side by side, from one run."""
