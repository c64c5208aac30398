"""Limits of time and memory for the code of authors."""
