"""PostgreSQL as a destination: sessions with time limits on the client's side, the tables, and the rows."""
