"""The chunked loss compared with a plain fp64 implementation, whose gradients come from autograd."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.drafts.losses import Coefficients, Output, Terms, distribution_loss

SLOTS, WIDTH, RANK, ROWS = 37, 12, 5, 61
IDS = torch.arange(1, 61, 3)  # a reduced vocabulary of 20 tokens


def inputs(reduced: bool = False, softcap: float | None = None, head: bool = True) -> dict[str, Any]:
    """Arguments of ``distribution_loss``. With a reduced vocabulary, two in three labels are outside it."""
    g = torch.Generator().manual_seed(1)
    whole, ids = torch.randn(ROWS, WIDTH, generator=g), IDS if reduced else None
    rows = len(IDS) if reduced else ROWS
    made = {
        "hidden": torch.randn(SLOTS, WIDTH, generator=g).requires_grad_(),
        "features": torch.randn(SLOTS, RANK, generator=g).requires_grad_(),
        "w2": torch.randn(rows, RANK, generator=g).requires_grad_(),
        "output": Output(whole[IDS] if reduced else whole, whole, ids, softcap),
        "target_hidden": torch.randn(SLOTS, WIDTH, generator=g),
        "labels": torch.randint(0, ROWS, (SLOTS,), generator=g),
        "weights": torch.rand(SLOTS, generator=g),
    }
    return made if head else made | {"features": None, "w2": None}


def capped(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    return logits if cap is None else cap * torch.tanh(logits / cap)


def distributions(x: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The draft's logits [n, D] and the target's probabilities [n, V] in fp64."""
    out: Output = x["output"]
    logits = capped(x["hidden"].double() @ out.head.double().T, out.softcap)
    if x["features"] is not None:
        logits = logits + x["features"].double() @ x["w2"].double().T
    return logits, capped(x["target_hidden"].double() @ out.target_head.double().T, out.softcap).softmax(-1)


def plain(x: dict[str, Any], c: Coefficients) -> torch.Tensor:
    """The formulas in the docstring of losses.py, with p over the whole vocabulary."""
    logits, q = distributions(x)
    out: Output = x["output"]
    ids = torch.arange(ROWS) if out.ids is None else out.ids
    p = torch.zeros_like(q).index_copy(1, ids, logits.softmax(-1))
    log_p = torch.zeros_like(q).index_copy(
        1, ids, logits.log_softmax(-1)
    )  # 0 for tokens that the draft lacks
    each = c.l1 * (p - q).abs().sum(-1) - c.soft * (q * log_p).sum(-1)
    each = each - c.ce * log_p.gather(1, x["labels"][:, None]).squeeze(
        1
    )  # a label outside has no cross-entropy
    return (each * x["weights"]).sum()


@pytest.mark.parametrize("chunk", [8, 128])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
@pytest.mark.parametrize(
    "terms", [(0.1, 0.9, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.3, 0.5, 0.7)]
)
def test_equals_the_plain_loss_and_its_gradients(
    terms, reduced: bool, softcap: float | None, chunk: int
) -> None:
    got, expected = (inputs(reduced, softcap) for _ in range(2))
    c = Coefficients(*terms)
    found, reference = distribution_loss(**got, coefficients=c, chunk=chunk), plain(expected, c)
    (3 * found.total).backward()
    (3 * reference).backward()
    assert found.total.item() == pytest.approx(reference.item(), rel=1e-5)
    for name in ("hidden", "features", "w2"):
        assert torch.allclose(got[name].grad, expected[name].grad, atol=1e-4), name


def one_slot(label: int, c: Coefficients) -> Terms:
    """The target has 0.1, 0.2, 0.3, 0.4 over four tokens; the draft has tokens 1 and 3 with 0.5 each."""
    head = torch.eye(4)
    return distribution_loss(
        torch.zeros(1, 4, requires_grad=True), None, None, Output(head[[1, 3]], head, torch.tensor([1, 3])),
        torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), torch.tensor([label]), torch.ones(1), c,
    )  # fmt: skip


def test_a_reduced_vocabulary_by_hand() -> None:
    """|p - q| = 0.1 + 0.3 + 0.3 + 0.1: tokens that the draft lacks count in full, and q is not renormalised."""
    terms = one_slot(3, Coefficients(1.0, 1.0, 1.0, agreement=True))
    assert terms.l1.item() == pytest.approx(0.8, abs=1e-6)
    assert terms.tv.tolist() == pytest.approx([0.4], abs=1e-6)
    assert terms.ce.item() == pytest.approx(0.693147, abs=1e-5)  # -log 0.5
    assert terms.total.item() == pytest.approx(
        0.693147 + 0.8 + 0.6 * 0.693147, abs=1e-5
    )  # H = -(0.2 + 0.4) log 0.5


def test_a_label_outside_has_no_cross_entropy() -> None:
    terms = one_slot(2, Coefficients(1.0, 0.0, compare=False))
    assert terms.ce.item() == 0 and terms.total.item() == 0
    terms.total.backward()  # no gradient, but a graph


def test_figures_of_each_slot() -> None:
    x = inputs()
    terms = distribution_loss(**x, coefficients=Coefficients(1.0, 1.0, agreement=True))
    logits, q = distributions(x)
    assert torch.allclose(terms.tv.double(), (logits.softmax(-1) - q).abs().sum(-1) / 2, atol=1e-6)
    assert torch.equal(terms.agreement, (logits.argmax(-1) == q.argmax(-1)).float())
    assert 0 < terms.agreement.sum() < SLOTS


def test_agreement_is_of_tokens_not_of_rows() -> None:
    """Row 1 of the reduced head is token 4, so it is not the target's mode, token 1."""
    head = torch.eye(6)
    output = Output(head[[1, 4]], head, torch.tensor([1, 4]))
    hidden = torch.tensor([[0, 5.0, 0, 0, 9.0, 0]] * 2)  # both rows of the draft prefer token 4
    target = torch.stack([head[4], head[1]]) * 9
    terms = distribution_loss(
        hidden, None, None, output, target, torch.tensor([4, 1]), torch.ones(2), Coefficients(1.0, 0.0, agreement=True)
    )  # fmt: skip
    assert terms.agreement.tolist() == [1.0, 0.0]


def test_gradient_near_convergence_is_that_of_fp64() -> None:
    """Pitfall 28: the gradient must be right even if the distributions nearly agree."""
    x = inputs()
    near = (x["target_hidden"] + 1e-2 * torch.randn(SLOTS, WIDTH)).detach()
    got, expected = (
        {**x, "hidden": near.clone().requires_grad_(), "w2": 0 * x["w2"].detach()} for _ in range(2)
    )
    c = Coefficients(0.0, 1.0)
    distribution_loss(**got, coefficients=c).total.backward()
    plain(expected, c).backward()
    error = (got["hidden"].grad - expected["hidden"].grad).norm() / expected["hidden"].grad.norm()
    assert error < 1e-3


def test_without_a_sequential_head() -> None:
    x, c = inputs(head=False), Coefficients(1.0, 0.5)
    terms = distribution_loss(**x, coefficients=c)
    assert terms.total.item() == pytest.approx(plain(x, c).item(), rel=1e-5)
    terms.total.backward()
    assert x["hidden"].grad.isfinite().all()


def test_no_gradient_is_computed_under_no_grad() -> None:
    x, c = inputs(), Coefficients(0.1, 0.9)
    with torch.no_grad():
        terms = distribution_loss(**x, coefficients=c)
    assert not terms.total.requires_grad
    assert terms.total.item() == pytest.approx(plain(x, c).item(), rel=1e-5)


def test_the_targets_distribution_is_computed_only_if_needed() -> None:
    c = Coefficients(1.0, 0.0, compare=False)
    x = inputs()
    x["output"] = replace(x["output"], target_head=torch.full((ROWS, WIDTH), float("nan")))
    terms = distribution_loss(**x, coefficients=c)
    assert terms.tv is None and terms.agreement is None
    assert terms.total.item() == pytest.approx(plain(inputs(), c).item(), rel=1e-5)


def test_products_take_the_autocast_type_and_divergences_do_not() -> None:
    """Products are bf16, figures fp32, gradients in the tensors' type. (bf16 logits near 10 have steps of 0.06.)"""
    x, exact = inputs(), inputs()
    c = Coefficients(0.1, 0.9)
    with torch.autocast("cpu", torch.bfloat16):
        terms = distribution_loss(**x, coefficients=c)
    terms.total.backward()
    reference = plain(exact, c)
    reference.backward()
    assert terms.total.dtype == terms.tv.dtype == x["hidden"].grad.dtype == torch.float32
    assert terms.total.item() == pytest.approx(reference.item(), rel=1e-2)
    assert (x["hidden"].grad - exact["hidden"].grad).norm() < 0.2 * exact["hidden"].grad.norm()


def test_rows_that_stand_for_tokens() -> None:
    output = Output(torch.zeros(3, 2), torch.zeros(8, 2), torch.tensor([1, 4, 6]))
    assert output.indices(torch.tensor([[4, 0], [6, 7]])).tolist() == [[1, -1], [2, -1]]
    assert Output(torch.zeros(8, 2), torch.zeros(8, 2)).indices(torch.tensor([5, 0])).tolist() == [5, 0]
