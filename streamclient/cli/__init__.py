"""The command line: a module for each subcommand, and helpers that they share."""
