"""Short programs that show how to use streamclient. A test runs each of them."""
