"""Migrations: one for each schema version.

Each installs the schema of the installed program's version. `migrate drain zero` keeps the tables.

    0001_version_5  tables, and models for the admin
    0002_version_6  fences of claims
    0003_version_7  results of steps
    0004_version_8  jobs that wait for others
    0005_version_9  flows
"""
