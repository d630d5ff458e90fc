"""The terminal: how every command reads its options and prints for people.

    commandline     the group of commands, options that they share, errors as one line, exit codes
    lazy_commands   commands that are imported when they are needed, those of other packages too
    progress        progress on standard error of a command that takes long
    values          values of fields as text
    fitted_table    a table that fits the width of the terminal
    job_table       a line for each job
    job_details     all fields of one job, and its former lives
    status_report   the whole system at a glance
    top_view        screen of queues and running jobs
    keyboard        single keys of a terminal
    queue_report    rules of queues, pauses, and how a file of rules differs

What always holds: texts of others are shown and never obeyed; tables fit the width of the terminal; there are no
colours in a pipe or a file. Nothing here reads a database.
"""
