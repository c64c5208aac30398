"""What a query says of functions: calls, steps, frames of OVER, direct arguments and row kinds."""
