"""Bytes per step, from headers."""
