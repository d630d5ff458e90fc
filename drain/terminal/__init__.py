"""The terminal: how commands read options and print.

    commandline     shared options, one-line errors, exit codes
    lazy_commands   commands imported on demand, also from other packages
    progress        progress on standard error
    values          field values as text
    fitted_table    a table fitted to the terminal
    job_table       one line per job
    job_details     one job and its earlier deaths
    flow_view       flows, and one as a tree or graph
    status_report   the whole system at a glance
    top_view        queues and running jobs, full screen
    keyboard        single keys
    queue_report    rules, pauses, and changes

Foreign text is never interpreted. Pipes and files get no colours. Nothing here reads a database.
"""
