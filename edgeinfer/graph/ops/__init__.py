"""All ops, one file each: the file name is the op's name, `OP` its record.

A model is made of these; what a device lacks of them it refuses by name.
"""

from __future__ import annotations

from edgeinfer.graph.op import Op
from edgeinfer.registry import Registry

OPS: Registry[type[Op]] = Registry("edgeinfer.graph.ops", "OP", "op")
