"""The main module of the engine's processes, which each of them imports before anything else.

See `child_processes.set_main_of_children`.
"""

import os

from engine.child_processes import SHARES_CORES, die_with_parent

if __name__ == "__mp_main__":
    die_with_parent()
    if SHARES_CORES in os.environ:
        from engine.vllm.notices import wait_for_notices

        wait_for_notices()
