"""Failover: one exchange goes on at another server. The decisions, without IO and without a clock."""
