"""Elements as they are stored, packed with gzip, and how much may come out of them.

A thousand bytes of gzip can claim a megabyte and a few of them fill any memory: nothing is unpacked further than what
a log of ours could hold.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator

from inc_tb.errors import RecordError

LARGEST_ELEMENT = 128 << 20
"""Unpacked. The graph of a model with 200,000 ops takes 50 MB."""
LARGEST_LOOSE_ELEMENT = 32 << 20
"""Of what may hold any JSON, which takes twenty times its size in memory."""
_GZIP = b"\x1f\x8b"
SPARE_BYTES, MOST_TO_ONE = 16 << 20, 64
"""Any element may unpack to the first, a large one to so many times its size: columns pack 3 to 1, names 30 to 1."""


def pack(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=4, mtime=0)


def unpacked(elements: Iterable[bytes], largest: int = LARGEST_ELEMENT) -> Iterator[bytes]:
    """Each element, as long as all of them together stay within what is plausible for one record."""
    left = LARGEST_ELEMENT
    for element in elements:
        left += MOST_TO_ONE * len(element)
        most = min(_most(element), largest, left)
        data = _unpack(element, most)
        left -= len(data)
        yield data


def check_claim(element: bytes) -> None:
    """Raise RecordError if an element says at its end that it unpacks to more than is plausible."""
    claimed = _claimed(element)
    if claimed > _most(element):
        raise RecordError(f"{_too_large(element, f'{claimed / 1e6:,.0f} MB')}. It is not sent; log the run again.")


def _claimed(element: bytes) -> int:
    """What an element says at its end that it unpacks to, but for whole multiples of 4 GB."""
    return int.from_bytes(element[-4:], "little") if element.startswith(_GZIP) else 0


def _most(element: bytes) -> int:
    return min(LARGEST_ELEMENT, SPARE_BYTES + MOST_TO_ONE * len(element))


def _unpack(element: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    data = b"" if _claimed(element) > most else unpacker.decompress(element, most + 1)
    if max(_claimed(element), len(data)) > most:
        raise ValueError(_too_large(element, f"more than {most / 1e6:,.0f} MB"))
    if not unpacker.eof or unpacker.unused_data:
        raise EOFError("an element is cut off, or has something behind it")
    return data


def _too_large(element: bytes, found: str) -> str:
    return f"an element of {len(element) / 1e6:,.3g} MB unpacks to {found}, which no log of inc-tb does"
