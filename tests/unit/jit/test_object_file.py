"""Object code in memory: code that LLVM emits runs as LLVM's own loader would run it, and anything else is refused."""

from __future__ import annotations

import ctypes
import struct

import llvmlite.binding as llvm
import pytest

from edgeinfer.jit import object_file
from edgeinfer.jit.machine_code import target_machine

pytestmark = pytest.mark.skipif(not object_file.can_load(), reason="object code is loaded by LLVM on this system")

PROGRAM = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@count = internal global i64 0
declare ptr @memmove(ptr, ptr, i64)

define i64 @looked_up(i64 %place) {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %place
  %value = load i64, ptr %at
  ret i64 %value
}

define i64 @twice(i64 %place) {
  %once = call i64 @looked_up(i64 %place)
  %sum = add i64 %once, %once
  ret i64 %sum
}

define i64 @moved(i64 %to, i64 %from, i64 %size) {
  %target = inttoptr i64 %to to ptr
  %source = inttoptr i64 %from to ptr
  call ptr @memmove(ptr %target, ptr %source, i64 %size)
  ret i64 %size
}
"""


def emitted(program: str) -> bytes:
    module = llvm.parse_assembly(program)
    code: bytes = target_machine().emit_object(module)
    return code


def function(loaded: object_file.LoadedCode, name: str, n_arguments: int):
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n_arguments)
    return kind(loaded.addresses[name])


def test_functions_reach_their_data_and_each_other() -> None:
    loaded = object_file.load(emitted(PROGRAM))
    assert [function(loaded, "looked_up", 1)(place) for place in range(4)] == [10, 20, 30, 40]
    assert [function(loaded, "twice", 1)(place) for place in range(4)] == [20, 40, 60, 80]


def test_functions_of_the_c_library_are_found() -> None:
    loaded = object_file.load(emitted(PROGRAM))
    source, target = ctypes.create_string_buffer(b"some text"), ctypes.create_string_buffer(9)
    function(loaded, "moved", 3)(ctypes.addressof(target), ctypes.addressof(source), 9)
    assert target.raw == b"some text"


def test_code_is_not_writable() -> None:
    loaded = object_file.load(emitted(PROGRAM))
    address = loaded.addresses["twice"]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights = line.split()[:2]
            first, stop = (int(part, 16) for part in span.split("-"))
            if first <= address < stop:
                assert rights == "r-xp"
                return
    pytest.fail("the code lies in no mapping")


def test_an_unknown_function_is_refused_by_name() -> None:
    with pytest.raises(object_file.NotLoadable, match="no function there_is_none"):
        object_file.load(emitted(PROGRAM.replace("@memmove", "@there_is_none")))


def test_other_files_are_refused() -> None:
    code = emitted(PROGRAM)
    other_machine = code[:18] + struct.pack("<H", 183) + code[20:]
    for content in (b"", b"MZ" + code[2:], other_machine, code[:40], code[: len(code) // 2]):
        with pytest.raises(object_file.NotLoadable):
            object_file.load(content)


def test_an_unknown_relocation_is_refused() -> None:
    code = bytearray(emitted(PROGRAM))
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    changed = 0
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", code, start + size * number)
        if fields[1] == object_file.RELOCATIONS:
            for at in range(fields[4], fields[4] + fields[5], 24):
                info = struct.unpack_from("<Q", code, at + 8)[0]
                struct.pack_into("<Q", code, at + 8, info >> 32 << 32 | 99)
                changed += 1
    assert changed
    with pytest.raises(object_file.NotLoadable, match="relocation 99"):
        object_file.load(bytes(code))
