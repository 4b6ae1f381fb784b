"""How many floating-point operations a GPT's optimizer step takes: the model's own count."""

from __future__ import annotations

from ppprof.config import ModelConfig


def step_flops(model: ModelConfig, tokens: int, length: int) -> int:
    """Model FLOPs of an optimizer step of one data-parallel replica, over all its ranks.

    The matrix products, two operations a multiply-add; for each token, with hidden size h, MLP
    width f, length s, vocabulary V and l blocks, a forward pass has

    ====================  ==========
    query, key, value     6 h^2        each block
    scores, values        4 s h        each block; in full, though half is masked
    attention's output    2 h^2        each block
    MLP                   4 h f        each block
    logits                2 h V        once
    ====================  ==========

    and backward twice that, one product for each operand's gradient. With f = 4h these are
    72 B s l h^2 (1 + s/6h + V/12lh) for B samples. Recomputation is not counted (it is not the
    model's work; MFU is meant to fall with it), nor is what is no matrix product.

    Args:
        model: the sizes; ``ffn_hidden_size`` blank is 4 x hidden_size.
        tokens: of the step in this replica, over all its micro-batches.
        length: tokens of a sample.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", appendix; there it is 96 B s l h^2 (1 + s/6h + V/16lh), because all
    blocks' forward passes are done twice.
    """
    return rank_flops(model, tokens, length, num_blocks=model.num_layers, has_logits=True)


def rank_flops(
    model: ModelConfig,
    tokens: int,
    length: int,
    *,
    num_blocks: int,
    has_logits: bool,
    mp_degree: int = 1,
) -> int:
    """One rank's share of `step_flops`; the shares of a replica's ranks add up to it.

    Args:
        model: the whole model's sizes.
        tokens: of the step in this replica: every pipeline stage computes all of them.
        length: tokens of a sample.
        num_blocks: blocks on this rank's pipeline stage, over all its virtual stages.
        has_logits: whether it is the last stage.
        mp_degree: ranks that every matrix product is split between; it divides the heads,
            ``ffn_hidden_size`` and ``vocab_size``.
    """
    hidden = model.hidden_size
    inner = model.ffn_hidden_size or 4 * hidden
    block = 8 * hidden * hidden + 4 * length * hidden + 4 * hidden * inner
    logits = 2 * hidden * model.vocab_size if has_logits else 0
    forward = tokens * (num_blocks * block + logits)
    return 3 * forward // mp_degree
