"""Runs before a packed program begins, which may have been started to run an edgeinfer module in a separate process."""

import runpy
import sys

from edgeinfer.process import PACKED_OPTION

if sys.argv[1:2] == [PACKED_OPTION] and sys.argv[2].partition(".")[0] == "edgeinfer":
    module = sys.argv[2]
    sys.argv[1:3] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
