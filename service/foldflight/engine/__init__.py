"""The engine: what drives an exchange and owns keys, states and changelogs, without knowing Spark."""
