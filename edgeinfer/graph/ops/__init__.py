"""All ops, one file each: the file name is the op's name, `OP` its record.

Models are built from these. A device refuses a model, by the op's name, if it lacks an op.
"""

from __future__ import annotations

from edgeinfer.graph.op import Op
from edgeinfer.registry import Registry

OPS: Registry[type[Op]] = Registry("edgeinfer.graph.ops", "OP", "op")
