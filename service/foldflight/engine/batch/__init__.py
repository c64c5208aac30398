"""The tasks of a batch, which are called once for a partition."""
