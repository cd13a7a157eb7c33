"""The verdict in tokens, with values worked out by hand and by torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from inc_tb.frameworks.ops import Array, Op, Pair
from inc_tb.measure.tokens import TokenWatch
from inc_tb.records import Tokens

VOCABULARY = 32


def op(name: str, inputs: Sequence[str] = ()) -> Op:
    return Op(name, "MatMul", 0, inputs=inputs)


def scores(name: str, mine: Array, theirs: Array) -> Pair:
    return Pair(name, name, "output", mine, theirs, None)


def watched(*batches: tuple[dict[str, Array], Sequence[Pair]], watch: TokenWatch | None = None) -> Tokens | None:
    watch = watch or TokenWatch()
    watch.set_ops([op("hidden"), op("head", ["hidden"])])
    for batch, pairs in batches:
        assert list(watch.of_batch(batch, iter(pairs))) == list(pairs)  # as they were
    return watch.found()


def with_likely(ids: Array, probability: float) -> Array:
    """Scores by which these tokens have this probability, and all others share the rest."""
    rest = (1 - probability) / (VOCABULARY - 1)
    found = np.full((*ids.shape, VOCABULARY), math.log(rest), np.float32)
    np.put_along_axis(found, ids[..., None], math.log(probability), axis=-1)
    return found


def test_by_hand() -> None:
    """Each next token has 1/2 in the one model and 1/4 in the other; the other 31 share 1/2 and 3/4."""
    ids = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    following = np.roll(ids, -1, axis=1)
    pair = scores("head", with_likely(following, 0.5), with_likely(following, 0.25))
    found = watched(({"input_ids": ids}, [pair]))
    assert found is not None
    assert (found.kind, found.op, found.count, found.sequences) == ("causal", "head", 8, 2)
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-6)
    assert (found.same_top1, found.same_top5) == (1, 1)
    assert found.perplexity_reference == pytest.approx(2, rel=1e-6)
    assert found.perplexity_quantized == pytest.approx(4, rel=1e-6)
    assert found.change_nll == pytest.approx(math.log(2), rel=1e-6)
    assert found.intervals["kl"] == pytest.approx((found.kl, found.kl))  # both sequences have the same
    assert [mean.what for mean in found.by_position] == ["0", "1", "2-3"]
    assert [mean.count for mean in found.by_position] == [2, 2, 4]


def test_first_choices() -> None:
    """Of four places one keeps its first choice, one moves it to the fifth place, and two lose it further behind."""
    mine = np.zeros((1, 4, VOCABULARY), np.float32)
    mine[..., 7] = 5
    theirs = np.zeros_like(mine)
    for place, better in enumerate((0, 4, 5, 20)):
        theirs[0, place, 7] = 1
        theirs[0, place, 8 : 8 + better] = 2
    found = watched(({"input_ids": np.arange(4)[None]}, [scores("head", mine, theirs)]))
    assert found is not None
    assert (found.same_top1, found.same_top5) == (0.25, 0.5)


@pytest.mark.parametrize(("told_of", "kind"), [(-1, "causal"), (0, "masked")])
def test_what_kind_the_data_tell(told_of: int, kind: str) -> None:
    ids = np.array([[1, 2, 3, 4, 5]])
    likely = with_likely(np.roll(ids, told_of, axis=1), 0.9)
    found = watched(({"input_ids": ids}, [scores("head", likely, likely)]))
    assert found is not None
    assert found.kind == kind
    assert (found.nll_reference is not None) == (kind == "causal")


def test_no_kind_where_the_data_tell_none() -> None:
    same = np.zeros((1, 5, VOCABULARY), np.float32)
    batch, pair = {"input_ids": np.arange(5)[None]}, scores("head", same, same)
    found, told = watched((batch, [pair])), watched((batch, [pair]), watch=TokenWatch("causal"))
    assert found is not None
    assert told is not None
    assert (found.kind, found.nll_reference) == ("", None)
    assert told.perplexity_reference == pytest.approx(VOCABULARY)


def test_padding_and_odd_numbers_are_left_out() -> None:
    ids = np.array([[1, 2, 3, 4]])
    mine = with_likely(np.roll(ids, -1, axis=1), 0.5)
    theirs = mine.copy()
    theirs[0, 3] = 0  # where the mask hides it
    theirs[0, 1, 0] = np.nan
    batch = {"input_ids": ids, "attention_mask": np.array([[1, 1, 1, 0]])}
    found = watched((batch, [scores("head", mine, theirs)]))
    assert found is not None
    assert (found.count, found.left_out, found.kl) == (2, 1, 0)
    # The next token is known of the first place alone: that of the third is padding.
    assert found.perplexity_reference == pytest.approx(2, rel=1e-6)


def test_tokens_that_are_impossible_in_both_models() -> None:
    ids = np.array([[1, 2, 3]])
    mine = with_likely(np.roll(ids, -1, axis=1), 0.5)
    mine[..., 0] = -np.inf
    found = watched(({"input_ids": ids}, [scores("head", mine, mine)]))
    assert found is not None
    assert (found.kl, found.left_out) == (0, 0)


@pytest.mark.parametrize(
    ("batch", "pair"),
    [
        ({"x": np.arange(4)[None]}, scores("head", np.zeros((1, 4, 32)), np.zeros((1, 4, 32)))),
        ({"input_ids": np.full((1, 4), 40)}, scores("head", np.zeros((1, 4, 32)), np.zeros((1, 4, 32)))),
        ({"input_ids": np.arange(4)[None]}, scores("hidden", np.zeros((1, 4, 32)), np.zeros((1, 4, 32)))),
        ({"input_ids": np.arange(4)[None]}, scores("head", np.zeros((1, 32)), np.zeros((1, 32)))),
        ({"input_ids": np.arange(4.0)[None]}, scores("head", np.zeros((1, 4, 32)), np.zeros((1, 4, 32)))),
    ],
    ids=["no tokens", "a smaller vocabulary", "read by another op", "one row a sequence", "no whole numbers"],
)
def test_no_language_model(batch: dict[str, Array], pair: Pair) -> None:
    assert watched((batch, [pair])) is None


def test_parts_of_a_batch_are_as_the_whole() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, (6, 5))
    mine = rng.normal(size=(6, 5, VOCABULARY)).astype(np.float32)
    theirs = mine + rng.normal(size=mine.shape).astype(np.float32) / 4
    whole = watched(({"input_ids": ids}, [scores("head", mine, theirs)]))
    parts = [scores("head", mine[a:b], theirs[a:b]) for a, b in ((0, 1), (1, 4), (4, 6))]
    batches = [({"input_ids": ids[a:b]}, [scores("head", mine[a:b], theirs[a:b])]) for a, b in ((0, 2), (2, 6))]
    assert watched(({"input_ids": ids}, parts)) == whole == watched(*batches)


def test_as_torch_has_it() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 500, (3, 40))
    mine = 3 * rng.normal(size=(3, 40, 500)).astype(np.float32)
    mine[:, :-1][np.arange(3)[:, None], np.arange(39), ids[:, 1:]] += 4
    theirs = mine + rng.normal(size=mine.shape).astype(np.float32)
    found = watched(({"input_ids": ids}, [scores("head", mine, theirs)]))
    assert found is not None
    p, q = (torch.from_numpy(x).double().log_softmax(-1) for x in (mine, theirs))
    divergence = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1).mean()
    assert found.kl == pytest.approx(divergence.item(), rel=1e-9)
    for name, values in (("nll_reference", p), ("nll_quantized", q)):
        following = torch.from_numpy(ids[:, 1:]).reshape(-1)
        loss = torch.nn.functional.nll_loss(values[:, :-1].reshape(-1, 500), following)
        assert getattr(found, name) == pytest.approx(loss.item(), rel=1e-9)
    assert found.same_top1 == pytest.approx((p.argmax(-1) == q.argmax(-1)).double().mean().item())
    among = (q.topk(5).indices == p.argmax(-1, keepdim=True)).any(-1).double().mean().item()
    assert found.same_top5 == pytest.approx(among)
    low, high = found.intervals["kl"]
    assert low < found.kl < high


def test_the_worst_places_in_their_context() -> None:
    ids = np.arange(12).reshape(2, 6)
    mine = with_likely(np.roll(ids, -1, axis=1), 0.5)
    theirs = mine.copy()
    theirs[1, 2] = with_likely(np.array([3]), 0.9)[0]  # behind 6, 7, 8 it expects 3 instead of 9
    watch = TokenWatch(decode=lambda tokens: "".join(chr(ord("a") + token) for token in tokens))
    found = watched(({"input_ids": ids}, [scores("head", mine, theirs)]), watch=watch)
    assert found is not None
    worst = found.worst[0]
    assert (worst.sequence, worst.position, worst.before) == (1, 2, "ghi")
    assert (worst.reference, worst.quantized, worst.actual) == ("j", "d", "j")
    text = found.texts[1]
    assert "".join(text.words) == "ghijkl"
    assert text.kl[0] is None  # no model has said anything about the first token
    assert text.kl[3] == worst.kl
    assert all(kl == 0 for i, kl in enumerate(text.kl) if i not in (0, 3))


def test_what_is_kept_does_not_grow() -> None:
    rng = np.random.default_rng(2)

    def batches(count: int) -> Iterator[tuple[dict[str, Array], list[Pair]]]:
        for _ in range(count):
            ids = rng.integers(0, VOCABULARY, (4, 64))
            mine = rng.normal(size=(4, 64, VOCABULARY)).astype(np.float32)
            yield {"input_ids": ids}, [scores("head", mine, mine + 0.1 * rng.normal(size=mine.shape))]

    found = watched(*batches(20))
    assert found is not None
    assert found.sequences == 80
    assert len(found.worst) == 20
    assert sum(len(text.words) for text in found.texts) == 2048
    assert len(found.by_token) == 20
    assert [a.kl >= b.kl for a, b in zip(found.worst, found.worst[1:], strict=False)] == [True] * 19
