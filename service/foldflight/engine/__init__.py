"""The engine: drives exchanges and owns keys, states and changelogs. It is independent of Spark."""
