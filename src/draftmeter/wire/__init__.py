"""Bytes to events: SSE, chat chunks, Prometheus text."""
