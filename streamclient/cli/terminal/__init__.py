"""What all commands have in common: their parser, how they end, and how text and tables fit the terminal."""
