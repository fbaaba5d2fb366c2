"""What `scripts/soak_server.py` asks for and how it judges streams, against a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.soak_protocols import PROTOCOLS, Protocol, fault_of_stream
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that fills gaps, for /infill."""
    path: Path = tmp_path_factory.mktemp("soak") / "tiny.gguf"
    with served(write_tiny_llama(path, gap=(259, 260, 261))) as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_streams_are_whole_and_cut_ones_are_seen(server: Running, protocol: Protocol) -> None:
    http = server.http()
    answer = http.post(protocol.path, json={**protocol.body("the rain", 4), "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.split("\n") if line and not line.startswith(": ")]
    assert fault_of_stream(protocol, lines) is None
    assert "ends with" in str(fault_of_stream(protocol, lines[:-1]))
    assert "ends with nothing" in str(fault_of_stream(protocol, []))
    assert "says" in str(fault_of_stream(protocol, ['data: {"error": {}}', *lines]))
    assert http.post(protocol.path, json={**protocol.body("the rain", 4), "stream": False}).status_code == 200
