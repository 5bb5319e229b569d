import pytest
import torch

from pipeline.drafts.losses import distribution_loss

SLOTS, WIDTH, RANK, ROWS = 37, 12, 5, 61


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return {
        "hidden": torch.randn(SLOTS, WIDTH, generator=g).to(dtype).requires_grad_(),
        "features": torch.randn(SLOTS, RANK, generator=g).to(dtype).requires_grad_(),
        "w2": torch.randn(ROWS, RANK, generator=g).to(dtype).requires_grad_(),
        "head": torch.randn(ROWS, WIDTH, generator=g).to(dtype),
        "target_hidden": torch.randn(SLOTS, WIDTH, generator=g).to(dtype),
        "labels": torch.randint(0, ROWS, (SLOTS,), generator=g),
        "weights": torch.rand(SLOTS, generator=g),
    }


def plain(x: dict[str, torch.Tensor], ce: float, l1: float) -> torch.Tensor:
    """The formula of design.md, written straight down in fp64."""
    logits = (x["hidden"] @ x["head"].T + x["features"] @ x["w2"].T).double()
    target = (x["target_hidden"] @ x["head"].T).double().softmax(-1)
    each = ce * torch.nn.functional.cross_entropy(logits, x["labels"], reduction="none")
    each = each + l1 * (logits.softmax(-1) - target).abs().sum(-1)
    return (each * x["weights"]).sum()


@pytest.mark.parametrize("ce,l1", [(0.1, 0.9), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("chunk", [8, 128])
def test_equals_the_plain_loss_and_its_gradients(ce: float, l1: float, chunk: int) -> None:
    got, expected = inputs(), inputs()
    terms = distribution_loss(**got, ce=ce, l1=l1, chunk=chunk)
    reference = plain(expected, ce, l1)
    (3 * terms.total).backward()
    (3 * reference).backward()
    assert terms.total.item() == pytest.approx(reference.item(), rel=1e-5)
    for name in ("hidden", "features", "w2"):
        assert torch.allclose(got[name].grad, expected[name].grad, atol=1e-4), name


def test_figures_of_each_slot() -> None:
    x = inputs()
    terms = distribution_loss(**x, ce=1.0, l1=1.0, agreement=True)
    draft = (x["hidden"] @ x["head"].T + x["features"] @ x["w2"].T).softmax(-1)
    target = (x["target_hidden"] @ x["head"].T).softmax(-1)
    assert torch.allclose(terms.tv, (draft - target).abs().sum(-1) / 2, atol=1e-6)
    assert torch.equal(terms.agreement, (draft.argmax(-1) == target.argmax(-1)).float())


def test_gradient_near_convergence_is_that_of_fp64() -> None:
    """Pitfall 28: where the distributions nearly agree the gradient must still be right."""
    x = inputs()
    near = (x["target_hidden"] + 1e-2 * torch.randn(SLOTS, WIDTH)).detach()
    got, expected = (
        {**x, "hidden": near.clone().requires_grad_(), "w2": 0 * x["w2"].detach()} for _ in range(2)
    )
    distribution_loss(**got, ce=0.0, l1=1.0).total.backward()
    double = {k: v.detach().double() if v.is_floating_point() else v for k, v in expected.items()}
    double["hidden"].requires_grad_()
    plain(double, 0.0, 1.0).backward()
    error = (got["hidden"].grad - double["hidden"].grad).norm() / double["hidden"].grad.norm()
    assert error < 1e-3


def test_without_a_sequential_head() -> None:
    x = inputs()
    x["features"] = x["w2"] = None
    terms = distribution_loss(**x, ce=1.0, l1=0.0)
    reference = torch.nn.functional.cross_entropy(x["hidden"] @ x["head"].T, x["labels"], reduction="none")
    assert terms.total.item() == pytest.approx((reference * x["weights"]).sum().item(), rel=1e-5)
    terms.total.backward()
    assert x["hidden"].grad.isfinite().all()


def test_no_gradient_is_formed_where_none_is_asked_for() -> None:
    x = inputs()
    with torch.no_grad():
        terms = distribution_loss(**x, ce=0.1, l1=0.9)
    assert not terms.total.requires_grad
    assert terms.total.item() == pytest.approx(plain(x, 0.1, 0.9).item(), rel=1e-5)


def test_the_target_is_left_out_where_nothing_compares_with_it() -> None:
    terms = distribution_loss(**inputs(), ce=1.0, l1=0.0, compare=False)
    assert terms.tv is None
    assert terms.total.item() == pytest.approx(plain(inputs(), 1.0, 0.0).item(), rel=1e-5)
