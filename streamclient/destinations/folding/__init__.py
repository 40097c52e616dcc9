"""The fold, which applies changes to rows, by the same rules for mirrors and for Spark's frames.

The modules of this folder are pure: they call no service, and have no side effects.
"""
