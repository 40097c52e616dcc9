"""The command line ``streamclient``: a module for each subcommand, and helpers that the subcommands share."""
