"""The main module of the engine's processes, which each of them imports before anything else.

See `child_processes.set_main_of_children`.
"""

import os

from engine.child_processes import ON_CPU, die_with_parent

if __name__ == "__mp_main__":
    die_with_parent()
    if ON_CPU in os.environ:
        from engine.vllm.cores import sleep_between_looks
        from engine.vllm.memory import keep_freed_memory

        keep_freed_memory()
        sleep_between_looks()
