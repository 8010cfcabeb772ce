"""The engine's processes, as the operating system sees them: out of the terminal's reach, and gone when this one is."""

import os

import psutil

# How long a child gets between being asked to end and being killed.
GRACE_S = 3.0


def leave_terminal_group() -> None:
    """Call in an engine process as it starts. A terminal sends Ctrl-C to its whole process group; a worker that gets it
    exits at once, and takes with it the streams that the parent is about to drain."""
    os.setpgrp()


def end_child_processes() -> None:
    """End every process below this one, asking first. Blocks for at most `GRACE_S` and a moment."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        try:
            child.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(children, timeout=GRACE_S)
    for child in alive:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=1.0)
