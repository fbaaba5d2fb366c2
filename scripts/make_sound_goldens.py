"""Makes the golden files of `tests/golden/data/sounds`: llama.cpp's conversions, and transformers' rows of sounds.

Run from the repository root: `python scripts/make_sound_goldens.py --llama-cpp FOLDER [FAMILY …]`, as
`make_vision_goldens.py`.

NAME.gguf (bf16; not of Ultravox, which is only a projector) and mmproj-NAME.gguf (f32) come with NAME.npz: for each
sound N: samplesN int8[S], rowsN float32[M, D] (those of all chunks, one after another), countsN int32[chunks]. Where
prompts are judged too: prompt, a text with one placeholder; idsN int32[T], its tokens with sound N, -1 for rows; lastN
float32[V], logits after it. mels.npz: for each K samplesK int8[S] and melsK float32[F, M], log-mel spectra by
transformers' WhisperFeatureExtractor without padding, sampled every 97th frame; framesK, their number; sumsK
float64[M], sums over all frames.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from goldens.llama_cpp import Converter
from goldens.sounds import CASES, RATE, SoundCase
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

DATA = Path(__file__).resolve().parent.parent / "tests" / "golden" / "data" / "sounds"
SAMPLED = 97
MELS = ((80, 4801), (128, 16000), (128, 480000), (80, 31 * RATE))


def sound(n_samples: int, random: np.random.Generator) -> NDArray[np.int8]:
    """Tones that rise and fall, with some silence and little noise, so that it is stored in few bytes."""
    seconds = np.arange(n_samples) / RATE
    tones = [np.sin(2 * np.pi * seconds * random.uniform(90, 3000)) for _ in range(4)]
    loud = np.sin(seconds * random.uniform(4, 9)) ** 2 * (np.sin(seconds * 3 + random.uniform(0, 3)) > -0.6)
    return np.round(28 * loud * np.sum(tones, axis=0)).astype(np.int8)


def make(case: SoundCase, converter: Converter, seed: int) -> None:
    """Write a family's files and transformers' results."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / case.name
        folder.mkdir()
        case.tokenizer.write(folder)
        model, found = case.write(folder, seed), dict[str, Any]()
        for number, length in enumerate(case.lengths):
            samples = sound(length, random)
            rows, answer = case.judged(model, folder, samples.astype(np.float32) / 128)
            found[f"samples{number}"] = samples
            found[f"rows{number}"] = np.concatenate([each.numpy() for each in rows])
            found[f"counts{number}"] = np.array([len(each) for each in rows], np.int32)
            found |= {f"{key}{number}": value for key, value in answer.items()}
        if case.prompt:
            found["prompt"] = np.array(case.prompt)
            converter.convert(folder, DATA / f"{case.name}.gguf", "bf16", case.tokenizer.pre, case.options)
        out = DATA / f"mmproj-{case.name}.gguf"
        converter.convert(folder, out, "f32", case.tokenizer.pre, ("--mmproj", *case.options))
        np.savez_compressed(DATA / f"{case.name}.npz", **found)
        counts = [found[f"counts{number}"].tolist() for number in range(len(case.lengths))]
        print(f"{case.name}: {out.stat().st_size / 1024:.0f} KiB, rows {counts}", flush=True)


def make_mels() -> None:
    """Write spectra of sounds of several lengths, a second of sound repeated in long ones."""
    random, found = np.random.default_rng(0), dict[str, Any]()
    for number, (n_mels, length) in enumerate(MELS):
        held = sound(min(length, RATE), random)
        samples = np.resize(held, length).astype(np.float32) / 128
        extractor = WhisperFeatureExtractor(feature_size=n_mels)
        mels = extractor(samples, sampling_rate=RATE, padding="longest", truncation=False).input_features[0].T
        found |= {f"samples{number}": held, f"length{number}": np.array(length), f"frames{number}": np.array(len(mels))}
        found |= {f"mels{number}": mels[::SAMPLED], f"sums{number}": mels.astype(np.float64).sum(axis=0)}
    np.savez_compressed(DATA / "mels.npz", **found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder with llama.cpp's sources")
    parser.add_argument("families", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    DATA.mkdir(parents=True, exist_ok=True)
    make_mels()
    with tempfile.TemporaryDirectory() as temporary, Converter(given.llama_cpp, Path(temporary) / "log") as converter:
        for case in CASES:
            if case.name in (given.families or [case.name]):
                make(case, converter, zlib.crc32(case.name.encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
