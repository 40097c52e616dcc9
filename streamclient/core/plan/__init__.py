"""Who shall have which lease, and what this worker does about it."""
