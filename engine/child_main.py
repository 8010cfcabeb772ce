"""The main module of the engine's processes, which each of them imports before anything else.

See `child_processes.set_main_of_children`.
"""

import os

from engine.child_processes import ON_CPU, die_with_parent

if __name__ == "__mp_main__":
    die_with_parent()
    if ON_CPU in os.environ:
        from engine.vllm.memory import keep_freed_memory
        from engine.vllm.notices import wait_for_notices

        keep_freed_memory()
        wait_for_notices()
