"""GET /slots and POST /slots/{id}?action=save|restore|erase: what runs, and what answers have left in the cache.

Saved states are files of our own in the folder of `edgeinfer serve --slot-save-path`. A request names a file in it, and
can reach no other.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, PART_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import ModelName, RequestBody
from edgeinfer.app.server.state import require_part, server_state
from edgeinfer.errors import EdgeInferError, EngineClosed

if TYPE_CHECKING:
    from edgeinfer.app.server.pooled_model import PooledModel

ROUTER = APIRouter(tags=["health"])

MOST_NAME_BYTES = 200
_NAME = re.compile(r"(?!(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))[\w-][\w .-]*(?<![ .])", re.IGNORECASE)
"""Names of files: no part of a path, not hidden, and none that Windows would change or take for a device."""
Action = Literal["save", "restore", "erase"]


class SlotRequest(RequestBody):
    """POST /slots/{id}. `model`: whose slot; the default model's if it says nothing."""

    filename: Annotated[str, Field(max_length=MOST_NAME_BYTES)] | None = None
    model: ModelName | None = None


@ROUTER.get("/slots", responses=PART_RESPONSES)
async def slots(request: Request) -> list[Record]:
    """The running and queued requests of all open models, how many more could run, and what each slot stands for."""
    state, records = server_state(request), list[Record]()
    require_part(state, "slots")
    for model in state.pool.open:
        answers = model.llm.telemetry.requests
        for number in range(max(state.options.parallel, len(answers))):
            record = {
                "id": number,
                "model": model.name,
                "is_processing": False,
                "n_ctx": model.llm.info.n_context,
                "n_prompt_tokens_cache": len(model.slots.tokens(number)),
            }
            if number < len(answers):
                answer, live = answers[number], answers[number].live
                record |= {
                    "is_processing": answer.is_active,
                    "priority": answer.priority,
                    "n_prompt_tokens": live.n_prompt,
                    "n_prompt_tokens_processed": live.n_read,
                    "n_decoded": live.n_generated,
                    "tokens_per_second": live.decode_tok_s,
                }
            records.append(record)
    return records


@ROUTER.post("/slots/{id_slot}", responses=ERROR_RESPONSES)
async def slot_action(id_slot: int, action: Action, request: Request, body: SlotRequest | None = None) -> Record:
    """Save what a slot stands for to a file, restore a file as what it stands for, or drop it."""
    state, body = server_state(request), body or SlotRequest()
    folder, n_slots = state.options.slot_folder, state.options.parallel
    if folder is None:
        raise APIError(400, "This server does not support slots action. Start it with `--slot-save-path`")
    path = None if action == "erase" else _path(folder, body.filename)
    async with state.model(body.model) as model:
        slot = model.slots.slot(id_slot, n_slots)
        try:
            if path is None:
                n_erased = await asyncio.to_thread(model.llm.drop_prefix, slot.tokens, slot.lora)
                model.slots.put(id_slot, ())
                return {"id_slot": id_slot, "n_erased": n_erased}
            return await (_save if action == "save" else _restore)(id_slot, path, model, n_slots)
        except EngineClosed:
            raise
        except EdgeInferError as reason:
            raise APIError(400, str(reason).replace(str(path), str(body.filename)), param="filename") from None


async def _save(id_slot: int, path: Path, model: PooledModel, n_slots: int) -> Record:
    slot, began_s = model.slots.slot(id_slot, n_slots), time.perf_counter()
    n_saved = await asyncio.to_thread(model.llm.save_prefix, slot.tokens, path, slot.lora)
    n_written = path.stat().st_size if n_saved else 0
    told = {"id_slot": id_slot, "filename": path.name, "n_saved": n_saved, "n_written": n_written}
    return {**told, "timings": {"save_ms": 1e3 * (time.perf_counter() - began_s)}}


async def _restore(id_slot: int, path: Path, model: PooledModel, n_slots: int) -> Record:
    began_s = time.perf_counter()
    tokens, lora = await asyncio.to_thread(model.llm.restore_prefix, path)
    model.slots.put(id_slot, tokens, lora)
    told = {"id_slot": id_slot, "filename": path.name, "n_restored": len(tokens), "n_read": path.stat().st_size}
    return {**told, "timings": {"restore_ms": 1e3 * (time.perf_counter() - began_s)}}


def _path(folder: Path, name: str | None) -> Path:
    """A file of the folder. Raises APIError for a name that is none."""
    if name is None or _NAME.fullmatch(name) is None or len(name.encode()) > MOST_NAME_BYTES:
        raise APIError(400, "Invalid filename: give the name of a file, without folders", param="filename")
    return folder / name
