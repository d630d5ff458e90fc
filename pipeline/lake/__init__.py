"""Files of the archive, read without Spark.

stores   file systems of archives and sources: this machine's, and object stores
files    Parquet files of each day, and their rows
"""
