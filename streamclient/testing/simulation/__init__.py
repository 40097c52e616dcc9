"""Workers and fleets on simulated time."""
