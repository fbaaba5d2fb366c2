"""`edgeinfer pack`: the bundle file of a model, from which it can be streamed when it is larger than memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.command_line.shell_words import model_names
from edgeinfer.app.plain_text import counted, echo
from edgeinfer.errors import BadSetting, PackFailed
from edgeinfer.text_values import user_path

if TYPE_CHECKING:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.backends.offload import BundlePacking
    from edgeinfer.models.load import Model


@dataclass(frozen=True, slots=True)
class PackFlags:
    """What the command line asks to do with the bundle file; in the order of the help."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Path of the bundle file, to take it elsewhere. Default: where run looks."
        ),
    ] = None
    verify: Annotated[bool, typer.Option("--verify", help="Check the whole bundle file and report damage.")] = False
    repair: Annotated[bool, typer.Option("--repair", help="Rewrite what is damaged or out of date.")] = False
    remove: Annotated[bool, typer.Option("--remove", help="Delete the bundle file.")] = False
    whole: Annotated[bool, typer.Option("--whole", help="For a ReLU model: use the bundle file with whole layers.")] = (
        False
    )
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="FILE",
            help="Order neurons by which are active together in this text.",
        ),
    ] = None


@takes_settings("approx")
def pack(
    given: Given,
    flags: PackFlags,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A name, a path or a source. Default: the last used.", autocompletion=model_names
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Manage the bundle file of a model larger than memory.

    A bundle file holds the weights in the order in which the cpu device reads them. It is written, or checked,
    repaired or deleted; interrupted writes are resumed. Weights of ReLU models, and of others with --approx, are read
    by neuron: --calibrate finds an order of neurons that needs fewer reads.
    """
    from edgeinfer.app.opening.model_choice import choose_file
    from edgeinfer.engine.offload.weight_placement import cpu_offload, has_records, place_of
    from edgeinfer.models.file_facts import fingerprint
    from edgeinfer.models.load import open_model
    from edgeinfer.process import allowed_cpus
    from edgeinfer.settings import load_settings

    if flags.verify + flags.repair + flags.remove + (flags.calibrate is not None) > 1:
        raise BadSetting("--verify, --repair, --remove and --calibrate are four things to do; give one of them")
    if flags.whole and flags.calibrate is not None:
        raise BadSetting("--whole is for layers that are read whole, in which no order of neurons helps: leave one out")
    settings = load_settings({**given, "model": model})
    chosen = choose_file(settings, "pack", "bundles are made of GGUF files")
    with open_model(chosen.path, approx=settings.load.approximation.threshold) as opened:
        own_name = chosen.name, fingerprint(opened.file)
        own = place_of(opened.spec, opened.file.tensors, *own_name, by_records=not flags.whole)
        path = own if flags.out is None else user_path(flags.out).absolute()
        if path.is_dir():
            raise BadSetting(f"{path} is a folder; --out names a file, such as {path / 'model.bundles'}")
        if flags.remove:
            _remove(path, chosen.name, as_json=as_json)
            return
        if flags.whole and not has_records(opened.spec, opened.file.tensors):
            raise BadSetting("--whole is for models whose layers could be read by neurons (ReLU); leave it out")
        packing = cpu_offload().packing(opened, path, len(allowed_cpus()), not flags.whole)
        if flags.calibrate is not None:
            _pack_in_order(packing, chosen.name, opened, flags.calibrate, as_json=as_json)
        elif flags.verify:
            _verify(packing, chosen.name, as_json=as_json)
        else:
            _pack(packing, chosen.name, repair=flags.repair, as_json=as_json)


def _remove(path: Path, name: str, *, as_json: bool) -> None:
    from edgeinfer.engine.offload.weight_placement import cpu_offload
    from edgeinfer.offload.bundle_file import SUFFIX, remove_bundles
    from edgeinfer.text_values import size_text

    if path.exists() and path.suffix != SUFFIX and not cpu_offload().is_bundle_file(path):
        raise PackFailed(f"{path} is not a bundle file; it is left alone")
    try:
        freed = remove_bundles(path)
    except OSError as error:
        raise PackFailed(f"{path} cannot be deleted: {error.strerror or error}") from None
    if as_json:
        echo(json.dumps({"model": name, "path": str(path), "state": "removed", "freed_bytes": freed}))
    else:
        echo(f"{path} is removed, {size_text(freed)}" if freed else f"there is no {path}")


def _verify(packing: BundlePacking, name: str, *, as_json: bool) -> None:
    from edgeinfer.app.progress import ProgressLine

    with ProgressLine() as progress:
        damaged = packing.damage(progress)
    if as_json:
        listed = [{"bundle": each.bundle.number, "stage": each.bundle.stage, "reason": each.reason} for each in damaged]
        state = "damaged" if damaged else "whole"
        record = {"model": name, "path": str(packing.path), "state": state, "damaged": listed}
        echo(json.dumps(record, ensure_ascii=False))
    elif damaged:
        for each in damaged:
            echo(each.reason)
    else:
        echo(f"{packing.path} is whole")
    if damaged:
        raise typer.Exit(1)


def _pack_in_order(packing: BundlePacking, name: str, model: Model, text: Path, *, as_json: bool) -> None:
    """Pack the neurons in the order that a text shows to be good."""
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.offload.record_plans import record_plans
    from edgeinfer.engine.offload.weight_placement import cpu_offload
    from edgeinfer.text_values import size_text

    plans, records = record_plans(), cpu_offload().records
    if plans is None or records is None:
        raise BadSetting("--calibrate is for layers read by neurons, which this edgeinfer does not do; leave it out")
    with ProgressLine() as progress:
        found = plans.calibrate(model, name, _text(text), progress)
        done = packing.pack_with(records.table(found.orders), _Bytes(progress, name, packing.data_bytes))
    if as_json:
        record = {"model": name, "path": str(done.path), "state": done.state, "size_bytes": done.nbytes}
        judged = {"reads": found.reads, "reads_by_number": found.reads_by_number}
        echo(json.dumps({**record, "n_tokens": found.n_tokens, "firing_share": found.firing_share, **judged}))
    else:
        fired = f"{100 * found.firing_share:.1f} % of neurons fire for one of the {found.n_tokens} tokens"
        echo(f"{done.path} ({size_text(done.nbytes)}) is written, in an order of its own: {fired}")
        reads = f"{found.reads:.0f} stretches of neighbours instead of {found.reads_by_number:.0f}"
        echo(f"for tokens it was not made from they lie in {reads}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is not UTF-8 text; --calibrate takes a text file") from None
    except OSError as reason:
        raise BadSetting(f"{path} cannot be read: {reason.strerror or reason}; --calibrate takes a text file") from None


def _pack(packing: BundlePacking, name: str, *, repair: bool, as_json: bool) -> None:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.text_values import size_text

    with ProgressLine() as line:
        progress = _Bytes(line, name, packing.data_bytes)
        done = packing.repair(progress) if repair else packing.pack(progress)
    if as_json:
        record = {
            "model": name,
            "path": str(done.path),
            "state": done.state,
            "size_bytes": done.nbytes,
            "kept_bytes": done.kept_bytes,
            "repaired": done.n_repaired,
        }
        echo(json.dumps(record, ensure_ascii=False))
        return
    said = {
        "packed": "is written",
        "present": "is there already",
        "repaired": f"is whole again: {counted(done.n_repaired, 'bundle')}",
    }
    went_on = f", {size_text(done.kept_bytes)} of it before" if done.kept_bytes else ""
    echo(f"{done.path} ({size_text(done.nbytes)}{went_on}) {said[done.state]}")


class _Bytes:
    """Shows the bundles of a model that are packed as bytes of the file, all other steps as they are reported."""

    def __init__(self, line: ProgressLine, name: str, nbytes: int) -> None:
        self._line, self._name, self._nbytes = line, name, nbytes

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "packing":
            done_bytes = self._nbytes * done // max(1, total)
            self._line.report(f"packing {self._name}", done_bytes, self._nbytes, unit="bytes")
        else:
            self._line(what, done, total)


COMMAND = Command(pack)
