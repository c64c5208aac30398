"""The epochs of a stream, which are called once for a bucket: changelogs out, states into the state table."""
