"""The common parts of all commands: parser, exit codes, signals, and text and tables that fit the terminal."""
