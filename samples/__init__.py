"""Short programs that show how streamclient is used; each is run by a test."""
