"""`scan`: files that the tasks which fold their rows read themselves, where these are the rows that Spark reads.

scan.py has what users see, and makes the list of files (listing.py) of paths and of Delta's tables with their logs
(deltalog.py). source.py decides who reads, by the session's settings, the query and the files, and reads in the tasks;
footers.py describes the files and knows which columns Arrow and Spark read alike; predicate.py evaluates conditions.
"""
