"""PostgreSQL as a destination: sessions with a clock of the client, its tables, its rows."""
