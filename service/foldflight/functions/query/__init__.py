"""The parts of a query that concern functions: calls, steps, window frames of OVER, direct arguments and row kinds."""
