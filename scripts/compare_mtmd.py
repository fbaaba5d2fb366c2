"""Compares rows of images and sounds with those of llama.cpp's mtmd, from the same files.

Run: `python scripts/compare_mtmd.py MODEL MMPROJ FILE …`. Needs llama-cpp-python, and Pillow for images, miniaudio for
sounds (projectors that hear and do not see are given sounds). MODEL is needed because llama.cpp opens no projector
without its model. For each file the rows of each tile are compared in order: the norm of all differences as a share of
the norm of all rows. llama.cpp resizes otherwise than image processors of transformers, so images that need no resize
say whether the encoders agree, and others how far resizing matters. Sounds of 30 seconds say whether encoders agree:
llama.cpp fills shorter ones up with silence that the encoder sees, and adds a chunk of silence to this one.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as api
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, DeviceOptions, Limits, open_device
from edgeinfer.engine.media.open_encoder import OpenEncoder
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.images.image import Image
from edgeinfer.models.projector_file import ProjectorFile, open_projector
from edgeinfer.models.sounds.sound import Sound
from edgeinfer.models.vision.encoder import Encoder, MediaPlan, TileInput

Floats = NDArray[np.float32]


class Mtmd:
    """llama.cpp's encoder. Close it."""

    def __init__(self, model: Path, projector: Path, width: int) -> None:
        silent = llama_cpp.llama_log_callback(lambda *_: None)
        for set_log in (api.mtmd_log_set, api.mtmd_helper_log_set):
            set_log(silent, None)
        self._llama, self._width, self._silent = llama_cpp.Llama(str(model), n_ctx=64, verbose=False), width, silent
        params = api.mtmd_context_params_default()
        params.use_gpu, params.print_timings, params.warmup = False, False, False
        self._context = api.mtmd_init_from_file(str(projector).encode(), self._llama.model, params)
        if not self._context:
            raise SystemExit("llama.cpp cannot open the projector file")

    def tiles(self, pixels: NDArray[np.uint8]) -> list[Floats]:
        """The rows of each tile of uint8[H, W, 3], in the order of the prompt."""
        height, width, _ = pixels.shape
        held = np.ascontiguousarray(pixels)
        pointer = held.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return self._rows(api.mtmd_bitmap_init(width, height, pointer), api.MTMD_INPUT_CHUNK_TYPE_IMAGE)

    def chunks(self, samples: Floats) -> list[Floats]:
        """The rows of each chunk of float32[N], in the order of the prompt."""
        pointer = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        bitmap = api.mtmd_bitmap_init_from_audio(len(samples), pointer)
        return self._rows(bitmap, api.MTMD_INPUT_CHUNK_TYPE_AUDIO)

    def _rows(self, bitmap: api.mtmd_bitmap_p, kind: int) -> list[Floats]:
        marker = api.mtmd_default_marker()
        text = api.mtmd_input_text(marker, len(marker), False, True)
        chunks, bitmaps = api.mtmd_input_chunks_init(), (api.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if api.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1) != 0:
            raise SystemExit("llama.cpp cannot prepare the file")
        found = []
        for number in range(api.mtmd_input_chunks_size(chunks)):
            chunk = api.mtmd_input_chunks_get(chunks, number)
            if api.mtmd_input_chunk_get_type(chunk) != kind:
                continue
            if api.mtmd_encode_chunk(self._context, chunk) != 0:
                raise SystemExit("llama.cpp cannot encode it")
            shape = api.mtmd_input_chunk_get_n_tokens(chunk), self._width
            found.append(np.ctypeslib.as_array(api.mtmd_get_output_embd(self._context), shape).copy())
        api.mtmd_input_chunks_free(chunks)
        api.mtmd_bitmap_free(bitmap)
        return found

    def close(self) -> None:
        """Free its memory."""
        api.mtmd_free(self._context)
        self._llama.close()


def our_tiles(
    projector: ProjectorFile, device: Device, encoder: Encoder, plan: MediaPlan, inputs: list[TileInput]
) -> list[Floats]:
    """The rows of each tile by edgeinfer."""

    def beside(spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits) -> SequenceEvaluator:
        lane = device.compile(spec, file, limits)
        return Executor(device, lane, limits, fingerprint, is_guest=True, inputs=spec.inputs)

    opened = OpenEncoder(projector, "", beside, encoder)
    rows = [opened.encoded(tile, part.grid) for tile, part in zip(inputs, plan.tiles, strict=True)]
    opened.close()
    return [rows[part] for part in plan.parts if isinstance(part, int)]


def difference(ours: list[Floats], theirs: list[Floats]) -> str:
    """The relative difference of rows, or what is not alike."""
    shapes, other = [each.shape for each in ours], [each.shape for each in theirs]
    if shapes != other:
        told = f"{[shape[0] for shape in shapes]} rows here, {[shape[0] for shape in other]} there"
        return f"{told}; the first tile {difference(ours[:1], theirs[:1])}" if shapes[0] == other[0] else told
    first, second = np.concatenate(ours), np.concatenate(theirs)
    return f"{np.linalg.norm(first - second) / np.linalg.norm(second):.2e} of {len(first)} rows in {len(ours)} tiles"


def compared(projector: ProjectorFile, device: Device, mtmd: Mtmd, path: Path) -> tuple[list[Floats], list[Floats]]:
    """The rows of a file, by edgeinfer and by llama.cpp."""
    images, sound = projector.encoders.images, projector.encoders.sound
    if images is not None:
        pixels = Image.of(path).pixels()
        plan = images.plan((pixels.shape[0], pixels.shape[1]))
        return our_tiles(projector, device, images, plan, images.tiles(pixels, plan)), mtmd.tiles(pixels)
    assert sound is not None
    samples = Sound.of(path).samples()
    plan = sound.plan(len(samples))
    return our_tiles(projector, device, sound, plan, sound.tiles(samples, plan)), mtmd.chunks(samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("mmproj", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--device", default="cpu", choices=("cpu", "reference"))
    given = parser.parse_args()
    with open_projector(given.mmproj) as projector:
        device = open_device(given.device, DeviceOptions())
        mtmd = Mtmd(given.model, given.mmproj, projector.encoders.width)
        for path in given.files:
            ours, theirs = compared(projector, device, mtmd, path)
            print(f"{path.name}: {difference(ours, theirs)}", flush=True)
        mtmd.close()
        device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
