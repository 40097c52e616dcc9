"""What an implementation of a protocol has to do, as checks that any test framework can run."""
