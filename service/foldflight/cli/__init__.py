"""The command line: the composition root, the only reader of the environment and the only owner of signals."""
