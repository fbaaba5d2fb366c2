"""Structures of winnt.h as a C compiler lays them out, for buffers of `GetLogicalProcessorInformationEx`."""

import ctypes


class GroupAffinity(ctypes.Structure):
    _fields_ = (("Mask", ctypes.c_uint64), ("Group", ctypes.c_uint16), ("Reserved", ctypes.c_uint16 * 3))


class Processor(ctypes.Structure):
    _fields_ = (
        ("Flags", ctypes.c_uint8),
        ("EfficiencyClass", ctypes.c_uint8),
        ("Reserved", ctypes.c_uint8 * 20),
        ("GroupCount", ctypes.c_uint16),
        ("GroupMask", GroupAffinity * 2),
    )


class NumaNode(ctypes.Structure):
    _fields_ = (
        ("NodeNumber", ctypes.c_uint32),
        ("Reserved", ctypes.c_uint8 * 18),
        ("GroupCount", ctypes.c_uint16),
        ("GroupMasks", GroupAffinity * 2),
    )


class Cache(ctypes.Structure):
    _fields_ = (
        ("Level", ctypes.c_uint8),
        ("Associativity", ctypes.c_uint8),
        ("LineSize", ctypes.c_uint16),
        ("CacheSize", ctypes.c_uint32),
        ("Type", ctypes.c_int),
        ("Reserved", ctypes.c_uint8 * 18),
        ("GroupCount", ctypes.c_uint16),
        ("GroupMasks", GroupAffinity * 2),
    )


class Body(ctypes.Union):
    _fields_ = (("Processor", Processor), ("NumaNode", NumaNode), ("Cache", Cache))


class Record(ctypes.Structure):
    _fields_ = (("Relationship", ctypes.c_uint32), ("Size", ctypes.c_uint32), ("Body", Body))


CORE, NODE, CACHE, PACKAGE, GROUP = range(5)


def masks(cpus, body, count, field):
    """Fill a structure's masks: one per processor group of 64 that `cpus` touch."""
    by_group: dict[int, int] = {}
    for cpu in cpus:
        by_group[cpu // 64] = by_group.get(cpu // 64, 0) | 1 << cpu % 64
    setattr(body, count, len(by_group))
    for place, (group, mask) in enumerate(sorted(by_group.items())):
        getattr(body, field)[place] = GroupAffinity(mask, group)


def record(relationship, *, cpus, level=0, n_bytes=0, kind=0, efficiency_class=0, node=0) -> bytes:
    made = Record(relationship, ctypes.sizeof(Record))
    if relationship in (CORE, PACKAGE):
        made.Body.Processor.Flags = len(cpus) > 1
        made.Body.Processor.EfficiencyClass = efficiency_class
        masks(cpus, made.Body.Processor, "GroupCount", "GroupMask")
    elif relationship == CACHE:
        made.Body.Cache.Level, made.Body.Cache.CacheSize, made.Body.Cache.Type = level, n_bytes, kind
        made.Body.Cache.Associativity, made.Body.Cache.LineSize = 12, 64
        masks(cpus, made.Body.Cache, "GroupCount", "GroupMasks")
    else:
        made.Body.NumaNode.NodeNumber = node
        masks(cpus, made.Body.NumaNode, "GroupCount", "GroupMasks")
    return bytes(made)
