"""Each head compared with its formula, computed by hand."""

import pytest
import torch

from pipeline.drafts.heads import ConfidenceHead, GatedHead, MarkovHead, RNNHead


def filled(module: torch.nn.Module, **values: object):
    """``module`` with parameters set to literal values; ``__`` in a name stands for a dot."""
    with torch.no_grad():
        for name, value in values.items():
            module.get_parameter(name.replace("__", ".")).copy_(torch.tensor(value))
    return module


W1 = {"markov_w1__weight": [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]}
W2 = {"markov_w2__weight": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}


def test_vanilla_bias_is_w1_of_the_previous_token_times_w2() -> None:
    head = filled(MarkovHead(3, 2), **W1, **W2)
    embedded = head.embed(torch.tensor([1, 2]))
    assert embedded.tolist() == [[0.0, 2.0], [1.0, 1.0]]
    features = head.features(embedded, torch.zeros(2, 5))
    assert head.bias(features).tolist() == [[4.0, 8.0, 12.0], [3.0, 7.0, 11.0]]


def test_a_reduced_vocabulary_has_all_rows_in_w1_and_its_own_in_w2() -> None:
    """As vLLM loads it: any token can be the previous one, but only the draft's own tokens can follow."""
    for head in (MarkovHead(9, 2, 4), GatedHead(9, 2, 4, 5), RNNHead(9, 2, 4, 5)):
        assert (head.markov_w1.weight.shape, head.markov_w2.weight.shape) == ((9, 2), (4, 2))


def test_gated_features() -> None:
    """f = sigmoid(Wg [h; W1[x]] + b) * W1[x], r = 2, H = 1: gates sigmoid(1 - 2 + 4) and sigmoid(0.5 * 3 - 1)."""
    head = filled(
        GatedHead(3, 2, None, 1), gate_proj__weight=[[1.0, -2.0, 2.0], [0.5, 0.0, 0.0]], gate_proj__bias=[0.0, -1.0]
    )  # fmt: skip
    features = head.features(torch.tensor([[1.0, 3.0]]), torch.tensor([[3.0]]))
    # The gates: sigmoid(3 - 2 + 6) = 0.999089, sigmoid(1.5 - 1) = 0.622459.
    assert features.tolist()[0] == pytest.approx([0.999089, 3 * 0.622459], abs=1e-5)


def rnn(learned_start: bool = False) -> RNNHead:
    """r = 1, H = 1; gate = s, candidate = W1[x], output = s + W1[x] + h."""
    return filled(
        RNNHead(3, 1, None, 1, learned_start),
        joint_proj__weight=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]], joint_proj__bias=[0.0, 0.0, 0.0],
    )  # fmt: skip


EMBEDDED, STATES = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([[0.5], [-0.5], [0.25]])


def test_rnn_features() -> None:
    """s0 = 0: o0 = 1.5; s1 = 0.5 tanh 1 = 0.380797, o1 = 1.880797;

    sigmoid(s1) = 0.594065, s2 = 0.594065 s1 + 0.405935 tanh 2 = 0.617551, o2 = -0.132449.
    """
    features = rnn().features(EMBEDDED, STATES)
    expected = [0.905148, 0.954563, -0.131680]  # tanh of the outputs
    assert features.squeeze(-1).tolist() == pytest.approx(expected, abs=1e-5)


def test_rnn_with_a_learned_start() -> None:
    """s0 = 0.4: o0 = 1.9; sigmoid(0.4) = 0.598688, s1 = 0.598688 * 0.4 + 0.401312 tanh 1 = 0.545112, o1 = 2.045112."""
    head = filled(rnn(learned_start=True), initial_state=[0.4])
    features = head.features(EMBEDDED[:2], STATES[:2])
    assert features.squeeze(-1).tolist() == pytest.approx([0.956237, 0.967075], abs=1e-5)
    features.sum().backward()
    assert head.initial_state.grad.abs() > 0
    assert dict(rnn().named_parameters()).keys() == dict(head.named_parameters()).keys() - {"initial_state"}


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "learned"])
def test_drafting_step_by_step_is_the_whole_block(kind: str) -> None:
    torch.manual_seed(0)
    head = {
        "vanilla": MarkovHead(11, 4), "gated": GatedHead(11, 4, None, 6), "rnn": RNNHead(11, 4, None, 6),
        "learned": RNNHead(11, 4, None, 6, learned_start=True),
    }[kind]  # fmt: skip
    embedded, hidden = head.embed(torch.randint(0, 11, (2, 3, 5))), torch.randn(2, 3, 5, 6)
    whole = head.features(embedded, hidden)  # [2, 3, 5, 4]
    state = None
    for k in range(5):
        step, state = head.step(embedded[..., k, :], hidden[..., k, :], state)
        assert torch.allclose(step, whole[..., k, :], atol=1e-6)


def test_confidence_reads_state_and_embedded_token() -> None:
    head = filled(ConfidenceHead(3), proj__weight=[[1.0, 10.0, 100.0]], proj__bias=[0.5])
    assert head(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])).tolist() == [321.5]
    assert ConfidenceHead(2)(torch.ones(4, 2), None).shape == (4,)
