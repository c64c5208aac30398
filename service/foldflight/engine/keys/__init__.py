"""The groups of a task: keys to slots, one exchange for all, rows of groups that fail, files if memory is full."""
