"""Framing: chunked bytes become lines."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.elastic.wire import MAX_LINE, ChunkDecoder, LineSplitter, MalformedBytes


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 17))
def test_a_body_survives_every_cut_into_chunks_and_packets(parts: list[bytes], size: int) -> None:
    raw = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    decoder = ChunkDecoder()
    packets = [raw[start : start + size] for start in range(0, len(raw), size)]
    assert b"".join(decoder.feed(packet) for packet in packets) == b"".join(parts)
    assert decoder.ended


def test_extensions_and_upper_case_are_understood() -> None:
    assert ChunkDecoder().feed(b"A;name=value\r\n0123456789\r\n") == b"0123456789"


@pytest.mark.parametrize(
    "raw", [b"\r\n", b"x\r\n", b"-1\r\n", b"0x1\r\n", b"1_0\r\n", b"1" * 17 + b"\r\n", b"1" * 2000]
)
def test_a_chunk_without_a_size_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedBytes):
        ChunkDecoder().feed(raw)


def test_bytes_after_the_last_chunk_are_ignored() -> None:
    decoder = ChunkDecoder()
    assert decoder.feed(b"1\r\na\r\n0\r\nTrailer: x\r\n\r\n") == b"a"
    assert decoder.feed(b"1\r\nb\r\n") == b""


def test_lines_come_out_when_they_are_whole() -> None:
    body = b"one\ntwo\n\nlast"
    for first, second in itertools.combinations(range(len(body) + 1), 2):
        splitter = LineSplitter()
        parts = (body[:first], body[first:second], body[second:])
        assert [line for part in parts for line in splitter.feed(part)] == [b"one", b"two", b""]


def test_a_line_may_be_as_long_as_the_bound_and_no_longer() -> None:
    assert LineSplitter().feed(b"a" * MAX_LINE + b"\n") == [b"a" * MAX_LINE]
    with pytest.raises(MalformedBytes):
        LineSplitter().feed(b"a" * (MAX_LINE + 1))
