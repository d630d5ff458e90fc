"""Migrations: `manage.py migrate` makes the tables, and an upgrade of job-drain has one for each version of the schema.

Each brings the tables to the version that the installed program needs, whichever that is. `migrate drain zero` leaves
them where they are.

    0001_version_5  the tables, and the models by which the admin reads them
    0002_version_6  fences of claims
"""
