"""Shipped functions: code that is pickled by value and signed, for servers and workers that trust the sender."""
