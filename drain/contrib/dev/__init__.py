"""`drain dev`: servers unless others are given, an enqueuer and a worker that reloads, in one terminal.

    development       starts, restarts and ends all programs
    ports             checks that ports are free
    directory_lock    one `drain dev` per data directory
    guarded_program   child process: its output, and a guard that ends it
    worker            worker process: imports job modules, explains failures
    source_watcher    detects changed Python files
    command           `drain dev`
    demo              `drain demo` and `drain drill`
    console           output, each line prefixed with its program

However `drain dev` ends, even by SIGKILL, none of its processes is left and no persistent data is lost. Its own process
never imports application code.
"""
