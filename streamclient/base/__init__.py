"""The ground floor: what every room may use, and what knows no room."""
