"""Failover: move one exchange to another server. The decisions are made without I/O and without a clock."""
