"""What tests of several rooms share: a tiny random model, the starter model, and a home of their own."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # matrices are small here: threads of NumPy would only spin

import gguf
import numpy as np
from filelock import FileLock
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background: programs that we start would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])  # no test depends on a time
settings.load_profile("any machine")

gc.disable()  # until all tests are collected: what is made meanwhile stays, and would be looked through again and again

for name in ("OLLAMA_MODELS", "HF_HUB_CACHE"):  # models of the user's other programs are nobody's business here
    os.environ[name] = os.path.join(tempfile.gettempdir(), "edgeinfer-tests-without-models")

FIRST = (
    "unit/backends/cuda/test_cuda_simulated.py",
    "privacy/test_audit.py",
    "packing/test_packed.py",
    "golden/test_starter_parity.py",
    "golden/test_speculation_distribution.py",
    "server/test_schemathesis.py",
    "unit/backends/cpu/kernels/test_cpu_guard_pages.py",
    "unit/backends/cpu/kernels/test_cpu_arm.py",
    "app/tui/test_chat_starter.py",
)
"""Files whose tests take longest."""

POSIX_ALONE = (
    "app/tui/test_chat_in_trouble.py",
    "null/test_null_work.py",
    "privacy/test_audit.py",
    "privacy/test_permissions.py",
    "privacy/test_read_only_home.py",
)
"""Files whose tests need modules that Python lacks on Windows."""
collect_ignore = list(POSIX_ALONE) if sys.platform == "win32" else []

WIDTH, HEADS, KV_HEADS, LAYERS, FFN, CONTEXT = 64, 4, 2, 2, 96, 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("th", "he", "in", "er", "an", "Ġt", "Ġa", "the", "Ġthe")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in shown else next(rest)) for byte in range(256)]


def write_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    context: int = CONTEXT,
    n_tokens: int | None = None,
    gap: Sequence[int] = (),
    n_spare: int = 0,
) -> Path:
    """A llama with random float32 weights, a byte-level vocabulary and ChatML; greedy answers of it never end.

    `n_tokens` overrides the height of its embedding; `gap`: tokens before a prefix, a suffix and what is between;
    `n_spare`: control tokens without a meaning.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    tokens = [*SPECIAL, *byte_characters(), *WORDS, *(f"<|spare_{number}|>" for number in range(n_spare))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    n_plain = len(tokens) - len(SPECIAL) - n_spare
    writer.add_token_types([3] * len(SPECIAL) + [1] * n_plain + [3] * n_spare)
    writer.add_token_merges(["t h", "h e", "i n", "e r", "a n", "Ġ t", "Ġ a", "th e", "Ġ the"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    for name, token in zip(("fim_pre", "fim_suf", "fim_mid"), gap, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.add_chat_template(CHATML)

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        values = draw.normal(0, scale * shape[-1] ** -0.5, shape) if len(shape) > 1 else draw.uniform(0.5, 1.5, shape)
        if name == "output.weight":
            values[: len(SPECIAL)] = 0
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", n_tokens or len(tokens), WIDTH, scale=8)
    for layer in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", KV_HEADS * WIDTH // HEADS, WIDTH),
            ("attn_v", KV_HEADS * WIDTH // HEADS, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FFN, WIDTH),
            ("ffn_up", FFN, WIDTH),
            ("ffn_down", WIDTH, FFN),
        ):
            add(f"blk.{layer}.{name}.weight", rows, columns, scale=2)
        add(f"blk.{layer}.attn_norm.weight", WIDTH)
        add(f"blk.{layer}.ffn_norm.weight", WIDTH)
    add("output_norm.weight", WIDTH)
    add("output.weight", n_tokens or len(tokens), WIDTH, scale=4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run the tests: long ones first, so that all processes end together, with short ones.

    They come from the front of one process's share, and what another one takes over comes from its end: no file of
    long tests is run by two, each with its own fixtures.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {str(Path(__file__).parent / part): place for place, part in enumerate(FIRST)}
        items.sort(key=lambda item: places.get(str(item.path), len(FIRST)))


def pytest_collection_finish() -> None:
    """Collected tests are no garbage, and have left Ctrl-C alone.

    Looking through all of them takes half a second each time. With the handler that `edgeinfer.__main__` installs when
    it is imported, a test that interrupts its own process would end it.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        raise pytest.UsageError(f"a test module has installed {signal.getsignal(signal.SIGINT)} for SIGINT")


def pytest_sessionfinish() -> None:
    """What is left at the end is not looked through: pytest would do it five times, for millions of objects."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_cores() -> Iterator[None]:
    """No test leaves its thread on fewer cores than it had."""
    before = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
    yield
    if sys.platform == "linux" and (after := os.sched_getaffinity(0)) != before:
        os.sched_setaffinity(0, before)
        pytest.fail(f"the thread may only run on {sorted(after)} now")


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Where several processes run the tests: kernels of the golden models are compiled together, and none twice."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    from tests.golden.golden_devices import compile_kernels

    compile_kernels()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """For texts that are nested too deeply: nothing is collected where the stack ends, for finalizers fail there.

    They may be those of earlier tests, and what they had to give back (locks, say) later ones would wait for. Nor is
    anything collected before: that takes a second in a process that has run thousands of tests.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of 265 tokens, with a context of 512."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(autouse=True)
def no_lm_studio(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has in LM Studio is not listed."""
    monkeypatch.setattr("edgeinfer.models.elsewhere.lm_studio.HOMES", ())
    monkeypatch.setattr("edgeinfer.models.elsewhere.lm_studio.POINTER", "no such file")


@pytest.fixture(autouse=True)
def no_lines_of_slow_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints on stderr does not depend on how long it takes here."""
    monkeypatch.setattr("edgeinfer.app.progress.FIRST_LINE_S", 600.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty EDGEINFER_HOME, no EDGEINFER_ variables of the user, and a machine neither hot nor unplugged."""
    from edgeinfer.engine.measure import power
    from edgeinfer.scheduling.workers.governor import Condition

    monkeypatch.setattr(power, "read_condition", Condition)
    for name in [name for name in os.environ if name.startswith("EDGEINFER_") and name != "EDGEINFER_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def starter_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter model of this machine's store, pulled if it is not there; skips offline. Mark users `model`."""
    from edgeinfer.errors import DownloadFailed, ModelNotFound
    from edgeinfer.models.store import STARTER_SOURCE, ModelStore

    store = ModelStore()
    with FileLock(tmp_path_factory.getbasetemp().parent / "starter.lock"):  # another worker may be pulling it
        try:
            return store.find(STARTER_SOURCE).path
        except ModelNotFound:
            if os.environ.get("EDGEINFER_OFFLINE"):
                pytest.skip("the starter model is not in the store and EDGEINFER_OFFLINE is set")
        try:
            return store.pull(STARTER_SOURCE).path
        except DownloadFailed as reason:
            pytest.skip(f"the starter model cannot be pulled: {reason}")
