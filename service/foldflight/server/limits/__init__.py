"""Limits on the time and memory of functions."""
