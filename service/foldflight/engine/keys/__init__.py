"""The groups of a task: keys to slots, one exchange for all, rows of groups that fail, files for those without room."""
