"""Valid files spoiled at random: bytes, lines and fields, JSON values. The same chance always
spoils the same way.

Enters: valid contents and a source of chance, Python's own or hypothesis's. Leaves: contents that
may be valid no more.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Mutate = Callable[[Sequence[bytes], random.Random], bytes]

MOST_CHANGES = 4
LONGEST_SLICE = 64
NASTY_BYTES = (
    *(
        b"",
        b"\0",
        b"\xff" * 8,
        b"\r\n",
        b"\n",
        b'"',
        b",",
        b";",
        b"../",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"PK\x03\x04",
        b"[" * 20_000,
    ),
)
NASTY_FIELDS = (
    *(
        "",
        " ",
        "0",
        "-0",
        "-1",
        "1e400",
        "-1e-400",
        "nan",
        "NaN",
        "inf",
        "-Infinity",
        "1,5",
        "0x10",
        "1_000",
        "9" * 40,
    ),
    *(
        "1970-01-01",
        "2024-02-30 00:00",
        "9999-12-31 23:59:59",
        "0000-00-00",
        "20240101 250000",
        "1700000000",
        "2024",
        "99999999d",
    ),
    *(
        "2024-01-01T00:00:00+14:00",
        "2024-01-01 00:00 UTC",
        "253402300800000",
        "0001-01-01 00:00",
        "99999999 000000",
    ),
    *(
        "\0",
        "é" * 10,
        "\u202e",
        "../../etc",
        "/",
        "EUR/USD",
        "#",
        "'",
        '"',
        '""',
        "a\nb",
        "x" * 5_000,
        "٣",
    ),
)
NASTY_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**30,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "../../outside",
        "/etc/passwd",
        "2024-01-01",
        "\0",
        "\ud800",
        "rows-0123456789abcdef",
        "<f8",
        "|O",
        "1h",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [0],
        ["", ""],
        {"": None},
        [1e400],
        {"x": {}},
        ["2024-01-01", "2023-01-01"],
    ),
)


def spoil_bytes(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Bits flipped, slices cut, repeated, moved and overwritten, the end lost."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, MOST_CHANGES)):
        at = chance.randint(0, len(data))
        upto = min(len(data), at + chance.randint(0, LONGEST_SLICE))
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at % len(data)] = chance.randrange(256)
            case 2:
                del data[at:upto]
            case 3:
                data[at:at] = data[at:upto]
            case 4:
                data[at:upto] = chance.choice(NASTY_BYTES)
            case 5:
                del data[at:]
            case _:
                other = chance.choice(seeds)
                start = chance.randint(0, len(other))
                data[at:upto] = other[start : start + LONGEST_SLICE]
    return bytes(data)


def spoil_text(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Lines lost, repeated and swapped, fields replaced; now and then bytes."""
    if not chance.randrange(4):
        return spoil_bytes(seeds, chance)
    lines = chance.choice(seeds).split(b"\n")
    for _ in range(chance.randint(1, MOST_CHANGES)):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(6):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                lines[at] = _spoil_field(lines[at], chance)
    return b"\n".join(lines)


def _spoil_field(line: bytes, chance: random.Random) -> bytes:
    delimiter = next((mark for mark in (b"\t", b";", b",", b" ", b"=") if mark in line), b",")
    fields = line.split(delimiter)
    at = chance.randrange(len(fields))
    match chance.randrange(4):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, fields[chance.randrange(len(fields))])
        case _:
            fields[at] = chance.choice(NASTY_FIELDS).encode(errors="surrogatepass")
    return delimiter.join(fields)


def spoil_json(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Values replaced, removed, repeated and exchanged anywhere in a JSON document; now and then
    bytes.
    """
    if not chance.randrange(8):
        return spoil_bytes(seeds, chance)
    document = json.loads(chance.choice(seeds))
    for _ in range(chance.randint(1, MOST_CHANGES)):
        document = _spoil_value(document, chance)
    return json.dumps(document, indent=2).encode() + b"\n"


def _spoil_value(document: Any, chance: random.Random) -> Any:
    """One place of the document, any depth, spoiled."""
    if not isinstance(document, dict | list) or not document or not chance.randrange(12):
        return copy.deepcopy(chance.choice(NASTY_VALUES))
    keys: Sequence[Any] = sorted(document) if isinstance(document, dict) else range(len(document))
    key = chance.choice(keys)
    if isinstance(document[key], dict | list) and document[key] and chance.randrange(4):
        document[key] = _spoil_value(document[key], chance)
        return document
    match chance.randrange(5):
        case 0:
            del document[key]
        case 1:
            document[key] = copy.deepcopy(document[chance.choice(keys)])
        case 2 if isinstance(document, dict):
            document[chance.choice(["", "extra", "__class__", "0"])] = copy.deepcopy(document[key])
        case _:
            document[key] = copy.deepcopy(chance.choice(NASTY_VALUES))
    return document
