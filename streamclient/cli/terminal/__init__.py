"""The common parts of all commands: their parser, their ends, and text and tables that fit the terminal."""
