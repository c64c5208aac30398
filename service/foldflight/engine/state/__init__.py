"""The state table: groups and their accumulators as immutable sorted runs, described by a manifest."""
