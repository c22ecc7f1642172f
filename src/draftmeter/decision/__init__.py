"""Numbers and a policy to verdicts."""
