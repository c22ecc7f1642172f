"""Requests, sessions and child servers."""
