"""Functions that travel as code: pickled by value, sealed by the sender, opened by a server that trusts the key."""
