"""OVER in a batch: the value of each call for each row, over a frame of the rows around it.

`query` is the checked query with the way in which each frame is folded, `partitions` gathers sorted rows to partitions,
`frames` computes which rows the frame of a row has, `folding` folds them in exchanges, and `task` connects these.
"""
