"""The obligations of an implementation of a protocol, as checks that any test framework can run."""
