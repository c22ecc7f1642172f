"""The experiment file, its targets and its scenarios."""
