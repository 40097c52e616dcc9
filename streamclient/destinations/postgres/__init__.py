"""PostgreSQL as a destination: its sessions, which have time limits on the client's side, its tables, its rows."""
