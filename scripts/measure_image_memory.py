"""Measures the peak memory of a process that answers about images, above one that answers a text.

Run: `python scripts/measure_image_memory.py MODEL.gguf --mmproj PROJECTOR.gguf [--image 448x448 …] [--n-images 1]`.
Each case is a fresh process: it loads the model, answers a text, and then a question about images, which are photo-like
JPEG files made here (`--format PNG` for others). Reported are peaks of resident memory (VmHWM of /proc/self/status, so
Linux only): above the text's answer, and above that without the encoder's weights as well, which is what images cost.
Beside them are the buffers that the encoder plans, and the peak of decoding and preparing alone, in a process without a
model. `scripts/make_projector.py` makes projector files whose rows have the model's width.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import edgeinfer
from edgeinfer.backends.base import kind_of
from edgeinfer.engine.kv.limits import encoder_limits
from edgeinfer.models.projector_file import open_projector

SIZES = ("448x448", "1024x768", "3264x2448", "8064x6048")
SAMPLE_S = 0.002
MB = 1e6


def status_bytes(key: str) -> int:
    """A size of this process, such as VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


@contextmanager
def watched_anonymous() -> Iterator[list[int]]:
    """The most anonymous memory while this runs, sampled: without pages of files, which the system may drop."""
    found, done = [status_bytes("RssAnon")], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            found[0] = max(found[0], status_bytes("RssAnon"))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def make_photo(width: int, height: int, number: int, path: Path) -> None:
    """Write a picture with slow changes and some noise, as photos have."""
    import PIL.Image

    draw = np.random.default_rng(number)
    small = draw.integers(0, 256, (height // 64 + 2, width // 64 + 2, 3), np.uint8)
    large = PIL.Image.fromarray(small).resize((width, height), PIL.Image.Resampling.BICUBIC)
    large.save(path, quality=92)


def measured(model: Path, mmproj: Path, images: Sequence[Path], max_tokens: int, *, together: bool) -> dict[str, float]:
    """What one process takes, in this one. `together`: all images in one question, else each in a chat of its own."""
    asked = [images] if together else [[image] for image in images]
    with edgeinfer.load(model, mmproj=str(mmproj), n_context=8192) as llm:
        ask(llm, [{"type": "text", "text": "Name a colour."}], max_tokens)
        text, began = status_bytes("VmHWM"), time.perf_counter()
        with watched_anonymous() as anonymous:
            for each in asked:
                parts = [{"type": "image", "image": edgeinfer.Image.of(image)} for image in each]
                ask(llm, [*parts, {"type": "text", "text": "What is it?"}], max_tokens)
        seconds, peak, after = time.perf_counter() - began, status_bytes("VmHWM"), status_bytes("VmRSS")
    sizes = {"text": text, "peak": peak, "now": after, "anonymous": anonymous[0]}
    return {f"{name}_mb": size / MB for name, size in sizes.items()} | {"seconds": seconds}


def ask(llm: edgeinfer.LLM, content: Sequence[Mapping[str, object]], max_tokens: int) -> None:
    """Read an answer in a new chat."""
    for _ in llm.chat([{"role": "user", "content": content}], max_tokens=max_tokens):
        pass


def decoded_alone(mmproj: Path, images: Sequence[Path]) -> dict[str, float]:
    """What decoding and preparing take in this process, without a model."""
    with open_projector(mmproj) as projector:
        encoder = projector.encoder
        make = [edgeinfer.Image.of(image) for image in images]
        before = status_bytes("VmHWM")
        kept = [encoder.tiles(image.source(), encoder.plan(image.size[::-1])) for image in make]
        return {"decoding_mb": (status_bytes("VmHWM") - before) / MB, "n_tiles": sum(len(list(each)) for each in kept)}


def planned(mmproj: Path) -> dict[str, float]:
    """The encoder's weights and buffers, as they are planned."""
    with open_projector(mmproj) as projector:
        encoder, tensors = projector.encoder, projector.file.tensors
        specs = encoder.trunk, encoder.projection
        needs = [kind_of("cpu").footprint(spec, tensors, encoder_limits(spec)) for spec in specs]
        table = 0 if encoder.positions is None else 4 * encoder.positions[0].n_rows * encoder.positions[0].columns
    return {
        "weights_mb": (table + sum(need.weight_bytes for need in needs)) / MB,
        "buffers_mb": sum(need.buffer_bytes + need.kv_bytes for need in needs) / MB,
    }


def in_child(options: argparse.Namespace, size: str, what: str, folder: Path) -> dict[str, float]:
    """A measurement in a fresh process."""
    paths = []
    for number in range(options.n_images):
        path = folder / f"{size}-{number}.{options.format.lower()}"
        if not path.exists():
            width, height = map(int, size.split("x"))
            make_photo(width, height, number, path)
        paths.append(str(path))
    command = [sys.executable, __file__, str(options.model), "--mmproj", str(options.mmproj), "--child", what]
    command += ["--max-tokens", str(options.max_tokens), *(["--chats"] if options.chats else []), "--files", *paths]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--mmproj", type=Path, required=True)
    parser.add_argument("--image", nargs="+", default=SIZES, metavar="WxH")
    parser.add_argument("--n-images", type=int, default=1)
    parser.add_argument("--chats", action="store_true", help="each image in a chat of its own, one after another")
    parser.add_argument("--format", default="JPEG", choices=("JPEG", "PNG", "WEBP"))
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--child", choices=("answer", "decode"), help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs="*", type=Path, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        answers = options.child == "answer"
        own = (options.model, options.mmproj, options.files, options.max_tokens)
        print(json.dumps(measured(*own, together=not options.chats) if answers else decoded_alone(*own[1:3])))
        return 0
    plan = planned(options.mmproj)
    print(f"planned: weights {plan['weights_mb']:.0f} MB, buffers {plan['buffers_mb']:.0f} MB")
    print(
        "image        decode alone  text peak  image peak  above text  above text + weights  anonymous  then  seconds"
    )
    with tempfile.TemporaryDirectory() as folder:
        for size in options.image:
            alone, found = (in_child(options, size, what, Path(folder)) for what in ("decode", "answer"))
            above = found["peak_mb"] - found["text_mb"]
            print(
                f"{size:12} {alone['decoding_mb']:9.0f} MB {found['text_mb']:7.0f} MB {found['peak_mb']:8.0f} MB "
                f"{above:8.0f} MB {above - plan['weights_mb']:10.0f} MB {found['anonymous_mb']:7.0f} MB "
                f"{found['now_mb']:5.0f} {found['seconds']:7.1f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
