"""Random and damaged pages, puts and heads for the compiled codec, judged by its twin; sanitized: ``make fuzz-codec``.

``python -m tests.wire.fuzz --seconds 60`` builds the extension with the address and the undefined-behaviour sanitizer,
beside the installed one, and runs itself on it. Each page, put and head follows from one seed, which a finding names.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitized"
COMPILED = "SANITIZED_CODEC"

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g -Wall -Wextra"


def build() -> Path:
    """The extension with sanitizers; fails where the compiler lacks them."""
    shutil.rmtree(BUILD, ignore_errors=True)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(BUILD), "--build-temp", f"{BUILD}.tmp"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CFLAGS": SANITIZERS, "LDFLAGS": SANITIZERS})
    found = list(BUILD.rglob("_native*.so"))
    if not found:
        raise SystemExit("the extension could not be built with -fsanitize=address,undefined; see above")
    return found[0]


def sanitized_environment(extension: Path) -> dict[str, str]:
    """Surroundings in which the sanitizer sees each allocation, also those of Python."""
    asked = ["gcc", "-print-file-name=libasan.so"]
    library = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps memory to its end; leaks are looked for by the tests
        "UBSAN_OPTIONS": "print_stacktrace=1",
        COMPILED: str(extension),
    }


def load(extension: Path) -> None:
    """Put this build in the place of the installed one, before records are imported."""
    spec = spec_from_file_location("streamclient.wire._native", extension)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["streamclient.wire._native"] = module


# --- pages ------------------------------------------------------------------------------------------------------------


class Writer:
    """Pages whose checksums are right and whose content need not be, so that damage reaches the rules behind them."""

    NAMES = (b"a", b"b", b"column_of_usual_length", "имя".encode(), b"", b"n\0l", b"\xff")
    TEXTS = (
        b"",
        b"text",
        "愿 \U0001f600".encode(),
        b"\xed\xa0\x80",
        b"x" * 70,
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
        b"\xe2\x82",
    )

    def __init__(self, dice: random.Random, crc8: Callable[..., int]) -> None:
        self.dice = dice
        self.crc8 = crc8
        self.plan: list[tuple[bytes, int]] = []
        """Names and types of the key that all records of a page mostly have; without, each has its own."""

    def mostly(self, usual: Any, *others: Any) -> Any:
        """The usual choice, except once in a while."""
        return self.dice.choice(others) if self.dice.random() < 0.02 else usual

    def length(self, true: int) -> bytes:
        lie = self.mostly(true, 0, true + 1, true - 1, 2**31, 2**32 - 1, self.dice.getrandbits(16))
        return int(max(lie, 0)).to_bytes(4, "little")

    def kind(self) -> int:
        return int(self.dice.choice((0, 1, 2, 3, 3, 7, *self.mostly((), (9, 10, 11, 4)))))

    def payload(self, kind: int) -> bytes:
        if kind in (0, 1):
            return bytes([kind]) + self.dice.randbytes(8)
        if kind == 2:
            return bytes([2, self.mostly(self.dice.getrandbits(1), 2)])
        if kind in (3, 7):
            content = self.dice.choice(self.TEXTS[:3] if self.dice.random() < 0.97 else self.TEXTS)
            return bytes([kind]) + self.length(len(content)) + content
        return bytes([kind])

    def stamp(self) -> bytes:
        number = self.mostly(self.dice.choice((5, 6, 1_700_000_000_000)), -1, 2**63 - 1)
        return int(number).to_bytes(8, "little", signed=True)

    def cell(self, *, is_key: bool, may_delete: bool, planned: tuple[bytes, int] | None = None) -> tuple[bytes, int]:
        usual_name, kind = planned or (self.dice.choice(self.NAMES[:4]), self.kind())
        name = self.mostly(usual_name, *self.NAMES)
        operation = self.dice.choice((0, 0, 1, 3)) if may_delete else self.mostly(0, 1, 2, 3, 4)
        has_value = self.mostly(operation == 0, True, False)
        has_stamp = self.mostly(not is_key and operation != 1, True, False)
        data = bytes([3, 4]) + self.length(len(name)) + name
        crc = self.crc8(name)
        if has_value:
            while is_key and kind in (1, 2):
                kind = self.kind()
            payload = self.payload(kind)
            data += b"\x05" + self.length(len(payload)) + payload
            crc = self.crc8(payload, crc)
        if operation:
            data += bytes([6, operation])
        if has_stamp:
            stamp = self.stamp()
            data += b"\x07" + stamp
            crc = self.crc8(stamp, crc)
        if operation:
            crc = self.crc8(bytes([operation]), crc)
        return data + bytes([10, crc]), crc

    def extension(self) -> bytes:
        micros = int(self.mostly(self.dice.getrandbits(50), -1)).to_bytes(8, "little", signed=True)
        numbers = self.dice.randbytes(4), micros, self.dice.randbytes(4)
        sequence = b"\x0c" + self.length(19) + b"\x0d%b\x0e%b\x0f%b" % numbers
        unknown = b"\x2a" + self.length(3) + b"abc"
        content = self.mostly(sequence, unknown + sequence, sequence + unknown, unknown, b"", sequence + sequence)
        return b"\x0b" + self.length(len(content)) + bytes(content)

    def put(self) -> bytes:
        """A row as a client puts it, each column mostly once."""
        names = self.dice.sample((*self.NAMES[:4], b"n\0l", b"c", b"d", b"e"), 8)
        self.plan = [(self.mostly(name, *self.NAMES), self.kind()) for name in names]
        return self.row(1, is_sent=True)

    def row(self, action: int, *, is_origin: bool = False, is_sent: bool = False) -> bytes:
        usual = 0 if is_sent else len(self.plan)
        keys = self.mostly(0 if is_origin else usual or self.dice.choice((1, 1, 2)), 0, 3)
        cells = self.mostly(0 if action == 3 else self.dice.randrange(7), 1)
        data, row_crc = self.mostly(b"\x75\x00\x00\x00\x01", b"\x75\x00\x00\x00", b"\x75\x00\x00\x01\x01"), 0
        for place in range(keys + cells):
            if place == keys:
                data += b"\x02"
            one, crc = self.cell(
                is_key=place < keys,
                may_delete=place >= keys and action == 2 and not is_origin,
                planned=self.plan[place] if place < len(self.plan) and (is_sent or place < keys) else None,
            )
            data += one
            row_crc = self.crc8(bytes([crc]), row_crc)
        is_deleted = self.mostly(action == 3, True, False)
        data += b"\x08" * is_deleted
        if self.mostly(not is_origin and not is_sent, True, False):
            data += self.extension()
        return bytes(data + bytes([9, self.crc8(bytes([is_deleted]), row_crc)]))

    def page(self) -> bytes:
        def field(tag: int, data: bytes) -> bytes:
            size, head = len(data), b""
            while size > 127:
                head, size = head + bytes([size & 127 | 128]), size >> 7
            return bytes([tag]) + head + bytes([size]) + data

        page = b""
        self.plan = []
        if self.dice.random() < 0.7:
            names = self.dice.sample(self.NAMES[:4], self.dice.choice((1, 1, 2)))
            self.plan = [(name, self.dice.choice((0, 3, 7))) for name in names]
        for _ in range(self.dice.randrange(9)):
            action = self.mostly(self.dice.choice((1, 2, 2, 3)), 0, 4)
            entry = bytes([8, action]) + field(0x12, self.row(action))
            if self.dice.random() < 0.2:
                entry += field(0x1A, self.row(1, is_origin=True))
            page += field(0x0A, bytes(entry))
        page += self.mostly(field(0x12, b"iterator"), b"", field(0x12, b"\xff"), field(0x1A, b"\x0a\x00"))
        return page + bytes(self.mostly(b"", b"\x20\x01", b"\x18\x01", b"\x78\x05", b"\x7b\x7c"))


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Often as it is, else with some bytes changed, cut, doubled or put in."""
    for _ in range(dice.choice((0, 0, 1, 1, 2, 4))):
        place = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and data:
            place %= len(data)
            data = data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :]
        elif kind == 1:
            data = data[:place]
        elif kind == 2:
            data = data[:place] + dice.randbytes(dice.randrange(5)) + data[place + dice.randrange(5) :]
        elif kind == 3:
            other = dice.randrange(len(data) + 1)
            data = data[:place] + data[min(place, other) : max(place, other)] + data[place:]
        else:
            data = data[:place] + data[place + dice.randrange(40) :]
    return data


# --- judging ----------------------------------------------------------------------------------------------------------


class Judge:
    """Runs both codecs on a page, and everything that may be asked of what they give."""

    def __init__(self) -> None:
        from streamclient.errors import CodecError
        from streamclient.records import NATIVE, ColumnType
        from streamclient.wire.crc8 import crc8
        from streamclient.wire.record_decoding import NativeCodec, PurePythonCodec

        assert NATIVE is not None, "the extension is not built"
        self.error: type[Exception] = CodecError
        self.crc8 = crc8
        self.twin, self.native = PurePythonCodec(), NativeCodec(NATIVE)
        self.schema = {"a": ColumnType.INTEGER, "b": ColumnType.STRING, "c": ColumnType.DOUBLE}
        self.read = 0
        """Pages that were read, and not refused."""
        self.columns_read = 0
        """How often columns were made of them."""
        self.values_read = 0
        """How often their values said all."""

    def one(self, seed: int) -> Any:
        """One column: records of a page seldom put one value at most into several."""
        return dict([random.Random(seed).choice(list(self.schema.items()))])

    def page(self, seed: int) -> bytes:
        """The page of a seed."""
        dice = random.Random(seed)
        return damaged(dice, Writer(dice, self.crc8).page())

    def outcome(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        """What a page shows, or the text of the error."""
        try:
            page = decode(data)
        except self.error as error:
            return str(error)
        records = page.records
        position = page.next_shard_iterator if hasattr(page, "next_shard_iterator") else page.next_token
        dice = random.Random(data[-8:])
        parts = [self.part(records, dice) for _ in range(2)]
        one = records[dice.randrange(len(records))] if records else None
        kept = [*parts[0], one]
        seen = repr(records), [hash(one) for one in records], position, page.may_more_record
        sizes = [(part.size_bytes, [part.sequence_info(place) for place in range(len(part))]) for part in parts]
        writes = [part.writes() for part in (records, *parts)]
        del page, records, parts
        return seen, sizes, writes, repr(kept)

    def summary(self, codec: Any, data: bytes) -> Any:
        """What a page holds in short, or the text of the error."""
        try:
            return codec.summarize_page(data)
        except self.error as error:
            return str(error)

    @staticmethod
    def part(records: Any, dice: random.Random) -> Any:
        """Some records of a page, as any caller may ask for them."""
        count = len(records)
        if count and dice.random() < 0.5:
            return records.select([dice.randrange(-count, count) for _ in range(dice.randrange(4))])
        return records[dice.randrange(-3, 3) : dice.randrange(-3, 6) : dice.choice((1, 1, 2, -1))]

    def columns(self, decode: Callable[[bytes], Any], data: bytes, schema: Any, *, values_only: bool = False) -> Any:
        """The columns of a page that can be read, ``None`` for values that do not say all, or the text of the error."""
        import pyarrow

        dice = random.Random(data[-8:])
        try:
            records = decode(data).records
            part = self.part(records, dice) if dice.random() < 0.5 else records
            made = part.values(schema) if values_only else part.arrow(schema)
        except self.error as error:
            return str(error)
        if made is None:
            return None
        batch = pyarrow.record_batch(made)
        batch.validate(full=True)
        return repr(batch.to_pylist()), str(batch.schema)

    def judge(self, seed: int, *, with_columns: bool) -> None:
        """Compare both on the page of a seed; ``AssertionError`` tells them apart."""
        data = self.page(seed)
        summaries = [self.summary(codec, data) for codec in (self.native, self.twin)]
        assert summaries[0] == summaries[1], f"seed {seed}, summarize_page: {data.hex()}\n{summaries}"
        for name in ("decode_page", "decode_tunnel_page"):
            own, other = getattr(self.native, name), getattr(self.twin, name)
            expected = self.outcome(other, data)
            found = self.outcome(own, data)
            assert found == expected, f"seed {seed}, {name}: {data.hex()}\n{found}\nexpected {expected}"
            if isinstance(expected, str):
                continue
            self.read += 1
            for schema, values_only in (
                ((None, False), (self.schema, False), (self.one(seed), True)) if with_columns else ()
            ):
                columns = self.columns(own, data, schema, values_only=values_only)
                expected = self.columns(other, data, schema, values_only=values_only)
                assert columns == expected, f"seed {seed}, {name}: {data.hex()}\n{columns}\nexpected {expected}"
                self.columns_read += not isinstance(expected, str)
                self.values_read += values_only and isinstance(expected, tuple)


class PutJudge:
    """Runs what the local server has compiled on a put, then on the forms it is kept in, as they are and damaged."""

    def __init__(self) -> None:
        from streamclient.records import NATIVE
        from streamclient.server.server_limits import DEFAULT_LIMITS
        from streamclient.wire import puts
        from streamclient.wire.crc8 import crc8
        from tests.wire.wire_puts import NOW_MILLIS, assert_same

        assert NATIVE is not None, "the extension is not built"
        self.puts, self.crc8, self.assert_same = puts, crc8, assert_same
        self.limits, self.now_millis = DEFAULT_LIMITS, NOW_MILLIS
        self.read = 0
        """Puts that were read, and not left to Python."""
        self.damaged_read = 0
        """Damaged forms in which a row was found all the same."""

    def judge(self, seed: int) -> None:
        """Compare both on the put of a seed; ``AssertionError`` tells them apart."""
        dice = random.Random(seed)
        frame = damaged(dice, Writer(dice, self.crc8).put())
        try:
            self.assert_same(frame, self.limits, is_unusual=True)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, put: {frame.hex()}\n{error}") from error
        put = self.puts.read_put(frame, self.limits.put)
        forms = [frame] if put is None else [put.row(self.now_millis), put.record(self.now_millis, 1, 2, 3)]
        self.read += put is not None
        for form in forms:
            self._read(damaged(dice, form))

    def _read(self, form: bytes) -> None:
        """The server reads only what it wrote, so the twins need not agree; but nothing is read that is not there."""
        for read in (self.puts.read_parts, lambda form: self.puts.rows_of([form, form])):
            try:
                read(form)
                self.damaged_read += 1
            except ValueError:
                continue


class HeadJudge:
    """Reads the head of an answer in one pass and line by line."""

    LINES = (
        b"x-ots-requestid: 0005f1",
        b"Content-Length:  17 ",
        b"authorization: OTS id:ZGF0ZQ==",
        b"A" * 64 + b": x",
        b"a" * 65 + b": x",
        b"no colon",
        b": no name",
        b" folded: x",
        b"bell: \x07",
        b"tab:\tx",
        b"\xff: \xff",
        b"",
    )

    def __init__(self) -> None:
        from streamclient.records import NATIVE
        from tests.wire.heads import head_of

        assert NATIVE is not None, "the extension is not built"
        self.head_of, self.read_head = head_of, NATIVE.read_head
        self.read = 0
        """Heads that were read in one pass, and not left to Python."""

    def judge(self, seed: int) -> None:
        """Compare both on the head of a seed; ``AssertionError`` tells them apart."""
        dice = random.Random(seed)
        status = dice.choice((b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 403", b"HTTP/1.0 200 OK", b"x"))
        usual = self.LINES[:3] if dice.random() < 0.7 else self.LINES
        lines = [dice.choice(usual) for _ in range(dice.choice((3, 5, 8, 98, 99, 100, 101)))]
        data = damaged(dice, b"\r\n".join([status, *lines, b"", b"body"]))
        self.read += self.read_head(data) is not None
        found, expected = self.head_of(data), self.head_of(data, is_in_one_pass=False)
        assert found == expected, f"seed {seed}, head: {data.hex()}\n{found}\nexpected {expected}"


def run(seconds: float, first_seed: int) -> None:
    """Judge pages, puts and heads until the time is over."""
    judge, put_judge, head_judge = Judge(), PutJudge(), HeadJudge()
    until, seed = time.monotonic() + seconds, first_seed
    while time.monotonic() < until:
        judge.judge(seed, with_columns=seed % 8 == 0)
        put_judge.judge(seed)
        head_judge.judge(seed)
        seed += 1
    print(
        f"{seed - first_seed} pages from seed {first_seed} on, each taken for two kinds: "
        f"{judge.read} could be read, {judge.columns_read} times by column, {judge.values_read} times as values; "
        f"as many puts: {put_judge.read} could be read; "
        f"as many heads of answers: {head_judge.read} could be read in one pass; no finding"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="where to begin; else another place each time")
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(48) if options.seed is None else options.seed
    if COMPILED in os.environ:
        load(Path(os.environ[COMPILED]))
        run(options.seconds, seed)
        return
    again = [sys.executable, "-m", "tests.wire.fuzz", "--seconds", str(options.seconds), "--seed", str(seed)]
    done = subprocess.run(again, cwd=ROOT, env=sanitized_environment(build()), check=False)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
