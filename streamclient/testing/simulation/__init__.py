"""Simulations of workers, fleets, tunnel clients and loops on simulated time, and the laws that judge them."""
