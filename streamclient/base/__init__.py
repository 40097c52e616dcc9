"""Code that every other package of streamclient may use. It imports none of these packages itself."""
