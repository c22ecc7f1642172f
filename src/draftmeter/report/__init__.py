"""Numbers to text."""
