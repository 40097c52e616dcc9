"""Requests that no client would send, against the local server: it answers each, and a refusal has no effect."""
