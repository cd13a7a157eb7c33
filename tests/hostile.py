"""What somebody could make who means harm: little that claims to be much, and headers whose checksums hold."""

from __future__ import annotations

import json
import zlib
from typing import Any

import google_crc32c

_MB = 1 << 20


def gzip_bomb(size: int = 10 << 30, *, claimed: int | None = None) -> bytes:
    """Gzip of so many zeros, rounded up to whole pieces of 16 MB; `claimed` is what its end says instead.

    A piece that is flushed completely can be repeated as it is, so that nothing large is ever packed.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece_bytes = 16 * _MB
    packer.compress(b"")
    piece = packer.compress(bytes(piece_bytes)) + packer.flush(zlib.Z_FULL_FLUSH)
    count = -(-size // piece_bytes)
    end = (
        b"\x03\x00"
        + bytes(4)
        + ((count * piece_bytes if claimed is None else claimed) % (1 << 32)).to_bytes(4, "little")
    )
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + piece * count + end


def sealed(header: dict[str, Any]) -> bytes:
    """The header of a record as documented, made without the code under test."""
    header.pop("checksum", None)
    body = json.dumps(header, separators=(",", ":")).encode()
    return b'{"checksum":"%08x",' % google_crc32c.value(body) + body[1:]
