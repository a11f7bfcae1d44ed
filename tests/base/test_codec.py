"""Types are looked into by one thread at a time, or the process ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

SOURCES = Path(holdfast.__file__).parent

FIRST_TOGETHER = """
import sys, threading
sys.path[:] = {path!r}
sys.setswitchinterval(1e-6)
import msgspec
from holdfast.base.codec import converted, json_decoder, msgpack_decoder

def decode(kind, barrier):
    barrier.wait()
    {call}

for number in range(200):
    inner = msgspec.defstruct(f"Inner{{number}}", [(f"a{{n}}", int | None, None) for n in range(30)])
    lists = [(f"b{{n}}", list[inner], []) for n in range(30)]
    outer = msgspec.defstruct(f"Outer{{number}}", [("inner", inner), *lists])
    barrier = threading.Barrier(8)
    threads = [threading.Thread(target=decode, args=(outer, barrier)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("survived")
"""


def together(call: str) -> subprocess.CompletedProcess[str]:
    program = FIRST_TOGETHER.format(path=sys.path, call=call)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "call",
    [
        """json_decoder(kind).decode(b'{"inner":{"a29":1}}')""",
        r"""msgpack_decoder(kind).decode(b"\x81\xa5inner\x81\xa3a29\x01")""",
        """converted({"inner": {"a29": 1}}, kind)""",
    ],
)
def test_threads_that_are_the_first_to_decode_a_type(call: str) -> None:
    done = together(call)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-2000:]


def test_everything_is_decoded_through_the_one_place() -> None:
    """Of what Holdfast itself decodes as a type of its own; plain documents have nothing to look into."""
    own = re.compile(r"msgspec\.convert\(|\bDecoder\((?!dict\[)|decode\([^#\n]*type=(?!dict\[)")
    found = {
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        if path.name not in ("codec.py", "crash.py")  # the latter's processes have one thread
        for line in path.read_text().splitlines()
        if own.search(line)
    }
    assert found == set()
