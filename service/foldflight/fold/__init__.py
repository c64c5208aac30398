"""Evaluation of several calls over rows, by slot. It is pure: it uses no IO and no clock."""
