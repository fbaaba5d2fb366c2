"""How a benchmark came about: the command line, the day, and the versions of what was measured.

In: the arguments of this process, the executors. Out: a `BenchOrigin`. Imports none of the packages it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

import edgeinfer
from edgeinfer.app.bench.report import BenchOrigin
from edgeinfer.app.bench.request import BenchExecutor
from edgeinfer.app.written_command import written_command


def origin_of(executors: Iterable[BenchExecutor], arguments: list[str] | None = None) -> BenchOrigin:
    """The origin of figures measured now; `arguments`: of this process, unless given."""
    versions = {"edgeinfer": edgeinfer.__version__}
    for executor in executors:
        if executor.kind == "peer":
            try:
                versions[executor.key] = version(executor.key)
            except PackageNotFoundError:  # importable without metadata
                continue
    today = datetime.now().astimezone().date().isoformat()
    return BenchOrigin(written_command(arguments), today, versions)
