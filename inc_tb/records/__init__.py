"""What is stored: the contract between the library, the event file and the page."""

from inc_tb.errors import RecordError
from inc_tb.records.codec import (
    CHUNKED,
    PLUGIN,
    ROW_KINDS,
    ROWS_PER_CHUNK,
    VERSION,
    Header,
    Kind,
    RowKind,
    check_element,
    checksum,
    decode_rows,
    decode_table,
    encode_rows,
    encode_table,
    read_header,
)
from inc_tb.records.packed import check_claim
from inc_tb.records.rows import (
    SLOWER,
    ChannelRow,
    Effect,
    GraphNode,
    HistogramRow,
    Origin,
    Preview,
    ProfileRow,
    Recipe,
    Rewrite,
    SampleRow,
    Span,
    Suggestion,
    Trial,
)
from inc_tb.records.table import Cell, Column, OpTable
from inc_tb.records.text import brief, listed, plural, short_repr, storable_text, to_json, without_middle
from inc_tb.records.tokens import TokenMean, Tokens, TokenText, WorstToken

__all__ = [
    "CHUNKED", "PLUGIN", "ROWS_PER_CHUNK", "ROW_KINDS", "SLOWER", "VERSION", "Cell", "ChannelRow", "Column", "Effect",
    "GraphNode", "Header", "HistogramRow", "Kind", "OpTable", "Origin", "Preview", "ProfileRow", "Recipe",
    "RecordError", "Rewrite", "RowKind", "SampleRow", "Span", "Suggestion", "TokenMean", "TokenText", "Tokens", "Trial",
    "WorstToken", "brief", "check_claim", "check_element", "checksum", "decode_rows", "decode_table", "encode_rows",
    "encode_table", "listed", "plural", "read_header", "short_repr", "storable_text", "to_json", "without_middle",
]  # fmt: skip
