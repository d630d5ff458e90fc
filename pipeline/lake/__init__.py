"""Files of the archive, read without Spark.

stores   file systems: local, and object stores
files    each day's Parquet files, and their rows
"""
