"""The exchange without IO: frames, their bytes, which may follow which, and both ends of one exchange."""
