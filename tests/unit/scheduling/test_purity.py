"""scheduling is pure: importing it loads no arrays, no compiler, no devices."""

import subprocess
import sys

PROGRAM = """
import sys
import edgeinfer.scheduling.workers.governor, edgeinfer.scheduling.cost.memory, edgeinfer.scheduling.machine.topology
import edgeinfer.scheduling.machine.topology.macos, edgeinfer.scheduling.machine.topology.windows
loaded = {"numpy", "numba", "llvmlite", "edgeinfer.backends"} & set(sys.modules)
assert not loaded, loaded
"""


def test_scheduling_loads_no_compiler_and_no_devices():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
