"""Makes sure that no engine process outlives this one."""

import psutil

# How long a child gets between being asked to end and being killed.
GRACE_S = 3.0


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
