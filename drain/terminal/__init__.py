"""The terminal: how every command reads options and prints for people.

    commandline     command group, shared options, one-line errors, exit codes
    lazy_commands   commands imported on demand, including other packages'
    progress        progress of a long command, on standard error
    values          field values as text
    fitted_table    a table fitted to the terminal
    job_table       one line per job
    job_details     all fields of one job and its former lives
    status_report   the whole system at a glance
    top_view        screen of queues and running jobs
    keyboard        single keys of a terminal
    queue_report    queue rules, pauses, and changes by a file of rules

Foreign text is shown, never interpreted; pipes and files get no colours. Nothing here reads a database.
"""
