import torch

from pipeline.drafts.heads import ConfidenceHead, MarkovHead


def test_markov_bias_is_w1_of_the_previous_token_times_w2() -> None:
    head = MarkovHead(3, 2)
    with torch.no_grad():
        head.markov_w1.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
        head.markov_w2.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    bias = head.bias(head.features(torch.tensor([1, 2])))
    assert bias.tolist() == [[4.0, 8.0, 12.0], [3.0, 7.0, 11.0]]


def test_confidence_reads_state_and_features() -> None:
    head = ConfidenceHead(3)
    with torch.no_grad():
        head.proj.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        head.proj.bias.fill_(0.5)
    assert head(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])).tolist() == [321.5]
    alone = ConfidenceHead(2)
    assert alone(torch.ones(4, 2), None).shape == (4,)
