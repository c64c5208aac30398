"""A query as a value, and its rows: names of columns, blocks, conversions, changelogs."""
