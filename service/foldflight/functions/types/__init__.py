"""SQL types, their values, and the state codec: what accumulators look like in Arrow."""
