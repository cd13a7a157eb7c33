"""Changes that make of a file one that nobody would write: by its bytes, and by what is in it."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 99, 255, 256, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
TEXTS = ("", "x", "é", "\x00", "a/b:0", "..", "/etc/passwd", "^a", "\n", "'\"\\", "x" * 3000, "int8", "{name}")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 2**70, "", "x" * 2000, "\ud800", [], {}, [[]], {"a": {}}, [0] * 50, float("nan"), -0.5,
)  # fmt: skip
_MOST_BYTES = 1 << 20


def in_bytes(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8, 30))):
        at = rng.randrange(len(found) + 1)
        size = min(rng.choice((1, 2, 4, 8, 64, 1000)), len(found) - at)
        match rng.randrange(7):
            case 0 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(found):
                found[at] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del found[at : at + size]
            case 3:
                found[at:at] = found[at : at + size] * rng.choice((1, 2, 50))
            case 4:
                found[at : at + 8] = (rng.choice(NUMBERS) % (1 << 64)).to_bytes(8, "little")
            case 5:
                found[at:at] = rng.randbytes(size)
            case _ if rng.random() < 0.3:
                del found[at:]
    return bytes(found[:_MOST_BYTES])


def in_json(value: Any, rng: random.Random) -> Any:
    """Somewhere in it something is another value, is missing, or is there twice."""
    found = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 5))):
        places = list(_places(found))
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        holder, key = rng.choice(places)
        match rng.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2:
                other, at = rng.choice(places)
                holder[key] = copy.deepcopy(other[at]) if _holds(other, at) else None
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))  # a list that is put into itself would have no end
    return found


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _holds(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def in_message(message: Any, rng: random.Random) -> Any:
    """Of protocol buffers: a field somewhere is cleared, doubled, swapped, or has another value."""
    found = type(message)()
    found.CopyFrom(message)
    for _ in range(rng.choice((1, 1, 2, 4))):
        one = rng.choice(list(_messages(found)))
        fields = [f for f, _ in one.ListFields()] if rng.random() < 0.8 else list(one.DESCRIPTOR.fields)
        if fields:
            _change_field(one, rng.choice(fields), rng)
    return found


def _messages(message: Any) -> Any:
    yield message
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            is_message = field.message_type.fields_by_name["value"].type == field.TYPE_MESSAGE
            values = list(value.values()) if is_message else []
        else:
            values = value if field.is_repeated else [value]
        for item in values:
            yield from _messages(item)


def _change_field(message: Any, field: Any, rng: random.Random) -> None:
    is_map = field.type == field.TYPE_MESSAGE and field.message_type.GetOptions().map_entry
    if rng.random() < 0.25 or is_map:
        message.ClearField(field.name)
        return
    if field.type == field.TYPE_MESSAGE:
        held = getattr(message, field.name)
        if not field.is_repeated:
            held.SetInParent()
        elif len(held) and rng.random() < 0.5:
            held.add().CopyFrom(rng.choice(held))
        elif len(held):
            del held[rng.randrange(len(held))]
        return
    value = _value(field, rng)
    try:
        if field.is_repeated:
            held = getattr(message, field.name)
            held.insert(rng.randrange(len(held) + 1), value)
        else:
            setattr(message, field.name, value)
    except (ValueError, TypeError):  # out of the field's range
        message.ClearField(field.name)


def _value(field: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 5, 64)))
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e-45, 1e38, float("nan"), float("inf")))
    return rng.choice(NUMBERS)
