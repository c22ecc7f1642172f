"""What was seen, and the run folder."""
