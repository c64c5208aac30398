"""`scan`: files that the tasks which fold their rows read themselves, where these are the rows that Spark reads.

scan.py has what users see. listing.py is the list of files, which folders.py makes of paths and tables.py of Delta's
tables with their logs (deltalog.py). source.py decides who reads, by the session's settings, the query and the files;
footers.py describes the files, column_formats.py knows which columns Arrow and Spark read alike, predicate.py evaluates
conditions, and reader.py is the part in the tasks.
"""
