"""`edgeinfer export`: a model in a form that other programs run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import BadSetting, EdgeInferError, UnsupportedModel

if TYPE_CHECKING:
    from edgeinfer.models.load import Model as OpenModel


@takes_settings("model", "ctx")
def export(
    given: Given,
    onnx: Annotated[
        str | None,
        typer.Option("--onnx", metavar="DIR", help="Write an ONNX decoder for onnxruntime-genai to this folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Export a model to a format of other programs.

    --onnx writes a folder for onnxruntime-genai: a graph, weights quantised as in the file, settings, and the tokenizer
    if it is a byte-level one. The folder must be new or empty.
    """
    from edgeinfer.app.opening.model_choice import choose_file
    from edgeinfer.engine.kv.limits import context_of
    from edgeinfer.models.load import open_model
    from edgeinfer.settings import load_settings

    if onnx is None:
        raise BadSetting("say what to write: edgeinfer export --onnx DIR")
    folder = _new_folder(Path(onnx))
    settings = load_settings(given)
    chosen = choose_file(settings, "export", "other programs can run it as it is")
    with open_model(chosen.path) as header:
        n_context = context_of(header.spec.n_context_usual, settings.load.n_context)
    with open_model(chosen.path, n_context) as opened:
        notes = _written(opened, folder, n_context)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if as_json:
        record = {"model": chosen.name, "folder": str(folder), "n_context": n_context, "files": files, "notes": notes}
        echo(json.dumps(record, ensure_ascii=False))
        return
    for note in notes:
        echo(note, err=True)
    echo(f"{chosen.name} is in {folder}, {sum(files.values()) / 1e6:.0f} MB, for {n_context} tokens of context")


def _new_folder(folder: Path) -> Path:
    """The folder, which does not exist or is empty. Raises BadSetting."""
    if folder.is_dir() and not any(folder.iterdir()):
        return folder
    if folder.exists() or folder.is_symlink():
        raise BadSetting(f"{folder} is there already and not empty; give a new folder")
    return folder


def _written(opened: OpenModel, folder: Path, n_context: int) -> list[str]:
    """Write into a folder beside the wanted one and give it its name when all is there; what to tell the user."""
    import shutil

    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.backends.onnx import require_packages
    from edgeinfer.temporary import temporary_path

    require_packages(("onnx",))
    from edgeinfer.backends.onnx.folder import SpecialIds, write_folder
    from edgeinfer.models.text.tokenizer import vocabulary_of

    vocabulary = vocabulary_of(opened.file.metadata)
    special = SpecialIds(vocabulary.bos_id, tuple(sorted(vocabulary.end_of_generation)), vocabulary.pad_id)
    beside: Path | None = None
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        beside = temporary_path(folder.absolute())
        beside.mkdir()
        beside.chmod(0o755)
        with ProgressLine() as progress:
            write_folder(beside, opened.spec, opened.file, n_context, special, progress)
        notes = _tokenizer_written(opened, beside, n_context)
        if folder.is_dir():
            folder.rmdir()
        beside.rename(folder)
    except OSError as error:
        raise EdgeInferError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
    return notes


def _tokenizer_written(opened: OpenModel, folder: Path, n_context: int) -> list[str]:
    from edgeinfer.models.text.tokenizer_file import tokenizer_files

    try:
        files = tokenizer_files(opened.file.metadata, n_context)
    except UnsupportedModel as reason:
        return [f"no tokenizer was written: {reason}"]
    (folder / "tokenizer.json").write_text(files.tokenizer, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(files.settings, encoding="utf-8")
    return []


COMMAND = Command(export)
