"""A user's processor in a fleet of real workers on simulated time, under chosen faults: what ``stream_simulation`` runs."""
