"""The exchange without I/O: frames, their encoding, the table of transitions, and both ends of one exchange."""
