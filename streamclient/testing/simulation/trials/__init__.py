"""A user's processor in real workers on simulated time, under chosen faults: what ``stream_simulation`` runs."""
