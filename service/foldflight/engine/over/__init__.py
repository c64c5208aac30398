"""OVER in a batch: the value of each call for each row, over a window frame of the rows around it.

`query` is the checked query with the strategy by which each window frame is folded, `partitions` gathers sorted rows to
partitions, `positions` computes which rows the window frame of a row has, and `window_frame_folds` folds
them in exchanges and has the task that connects these.
"""
