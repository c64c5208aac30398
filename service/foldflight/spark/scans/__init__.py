"""`scan`: files that the tasks which fold their rows read themselves, where these are the rows that Spark reads.

scan.py has what users see. source.py decides who reads, by the session's settings, the query's columns and the files;
footers.py describes the files, readable.py knows which columns Arrow and Spark read alike, predicate.py evaluates
conditions, and reader.py is the part in the tasks.
"""
