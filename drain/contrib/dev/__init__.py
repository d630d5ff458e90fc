"""`drain dev`: servers unless others are given, an enqueuer and a worker that reloads, in one terminal.

    development       starts all programs, restarts those that die, and ends them in order
    ports             checks that the ports of the servers are free
    directory_lock    one `drain dev` uses a data directory at a time
    guarded_program   one child process: its output line by line, and the guard that ends it
    worker            inside of the worker process: imports the job modules, and says what is wrong with them
    source_watcher    notices that a Python file has changed
    command           `drain dev`
    demo              `drain demo` and `drain drill`
    console           lines that begin with the name of the program that wrote them

What always holds: however `drain dev` ends, SIGKILL included, no process of its is left and no data that were to be
kept are lost. The process of `drain dev` itself never imports the code of the application.
"""
