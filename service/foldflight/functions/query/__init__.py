"""The parts of a query that concern functions: calls, steps, frames of OVER, direct arguments and row kinds."""
