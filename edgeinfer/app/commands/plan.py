"""`edgeinfer plan`: what would run where, and how large it is, before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command import Command
from edgeinfer.app.options import KV, Cores, Ctx, Device, Json, Model, Threads

if TYPE_CHECKING:
    from edgeinfer.models.spec import ModelSpec
    from edgeinfer.scheduling.plan import Plan, PlannedOp


def plan(
    model: Model = None,
    ctx: Ctx = None,
    device: Device = None,
    kv: KV = None,
    threads: Threads = None,
    cores: Cores = None,
    ram: Annotated[
        str | None, typer.Option("--ram", metavar="SIZE|PCT", help="Memory to plan for (default: what is available).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what would run where and how large it would be, before loading. Speeds are shown once they were measured."""
    from edgeinfer.app.fit import plan_for, size_in_bytes
    from edgeinfer.app.model_choice import choose_model
    from edgeinfer.app.speeds import measured_speeds
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.models.load import weight_bytes
    from edgeinfer.scheduling.memory import require_fit
    from edgeinfer.scheduling.topology import available_bytes, usable_cores
    from edgeinfer.settings import load_settings

    wanted = {"model": model, "ctx": ctx, "device": device, "kv": kv, "threads": threads, "cores": cores}
    settings = load_settings(wanted)
    local = choose_model(settings, remember=False)
    machine = settings.machine
    n_workers = machine.threads or len(machine.cores or usable_cores())
    with GGUFFile.open(local.path) as file:
        spec, planned = plan_for(
            file.metadata,
            file.tensors,
            device=machine.device[0],
            n_context=settings.generation.ctx,
            kv=machine.kv,
            n_workers=n_workers,
            ram_bytes=None if ram is None else size_in_bytes(ram, available_bytes()),
            speeds=measured_speeds(file, machine.device[0], n_workers, machine.kv),
        )
        file_bytes = weight_bytes(spec, file.tensors)
        n_params = sum(_elements(file.tensors[name].shape) for name in {w.tensor for w in spec.weights()})
    if as_json:
        typer.echo(json.dumps(_record(spec, planned, file_bytes, n_params)))
    else:
        _print(local.name, spec, planned, file_bytes, n_params)
    require_fit(planned.need, planned.available_bytes)


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


def _record(spec: ModelSpec, planned: Plan, file_bytes: int, n_params: int) -> dict[str, object]:
    """The plan with the keys of the command-line contract."""
    need, speeds = planned.need, planned.speeds
    return {
        "model": {
            "arch": spec.architecture,
            "params": n_params,
            "weight_bytes": file_bytes,
            "kv_bytes_per_token": need.kv_bytes_per_token,
        },
        "machine": None,
        "predicted": {
            "prefill_tok_s": speeds.prefill_tok_s,
            "decode_tok_s": speeds.decode_tok_s,
            "ttft_s": speeds.ttft_s,
            "ram_bytes": need.total_bytes,
            "vram_bytes": 0,
            "flash_bytes_per_token": 0,
            "bound_by": None,
        },
        "memory": {
            "weight_bytes": need.weight_bytes,
            "kv_bytes": need.kv_bytes,
            "buffer_bytes": need.buffer_bytes,
            "n_context": need.n_context,
            "available_bytes": planned.available_bytes,
        },
        "plan": planned.line,
        "stages": [_stage(op) for op in planned.ops],
    }


def _stage(op: PlannedOp) -> dict[str, object]:
    lanes = [{"device": lane.device, "rows": lane.rows and list(lane.rows), "seconds": None} for lane in op.lanes]
    return {"phase": "decode", "ops": op.name, "lanes": lanes, "seconds": None}


def _print(name: str, spec: ModelSpec, planned: Plan, file_bytes: int, n_params: int) -> None:
    """The plan for people."""
    from edgeinfer.scheduling.memory import in_gigabytes

    need, speeds = planned.need, planned.speeds
    typer.echo(f"{name}: {spec.architecture}, {n_params / 1e6:.0f} M parameters, {spec.n_layers} layers")
    typer.echo(f"plan      {planned.line}")
    held = f"{in_gigabytes(need.weight_bytes)} as {planned.device} holds them"
    typer.echo(f"weights   {in_gigabytes(file_bytes)} in the file, {held}")
    typer.echo(
        f"KV cache  {need.kv_bytes_per_token} bytes a token, {in_gigabytes(need.kv_bytes)} for {need.n_context} tokens"
    )
    typer.echo(f"memory    {in_gigabytes(need.total_bytes)} of {in_gigabytes(planned.available_bytes)} available")
    if speeds.decode_tok_s is None:
        typer.echo("speed     not measured yet on this machine; edgeinfer run measures it")
    else:
        prefill = "" if speeds.prefill_tok_s is None else f", prefill {speeds.prefill_tok_s:.0f} tok/s"
        typer.echo(f"speed     decode {speeds.decode_tok_s:.0f} tok/s{prefill} (measured)")


COMMAND = Command(plan)
