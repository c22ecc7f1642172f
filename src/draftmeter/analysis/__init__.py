"""Records to numbers; pure functions."""
