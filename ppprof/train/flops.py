"""The model FLOPs of an optimizer step of a GPT."""

from __future__ import annotations

from ppprof.config import ModelConfig


def step_flops(model: ModelConfig, tokens: int, length: int) -> int:
    """Return the model FLOPs of an optimizer step of one data-parallel replica, summed over its ranks.

    Counts matrix products only, two operations per multiply-add. For each token, with hidden size
    h, MLP width f, length s, vocabulary V and l blocks, a forward pass has

    ====================  ==========
    query, key, value     6 h^2        each block
    scores, values        4 s h        each block; in full, although half is masked
    attention's output    2 h^2        each block
    MLP                   4 h f        each block
    logits                2 h V        once
    ====================  ==========

    A backward pass has twice as many: one product for each operand's gradient. With f = 4h and B
    samples the sum is 72 B s l h^2 (1 + s/6h + V/12lh). Recomputation is not counted: it is not
    work of the model, and MFU should fall with it.

    Args:
        model: the sizes; a blank ``ffn_hidden_size`` is 4 x hidden_size.
        tokens: tokens of the step in this replica, over all its micro-batches.
        length: tokens of a sample.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", appendix. Their formula is 96 B s l h^2 (1 + s/6h + V/16lh), because they
    run the forward passes of all blocks twice.
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
    """Return one rank's share of `step_flops`.

    The shares of all ranks of a replica sum to `step_flops`.

    Args:
        model: the sizes of the whole model; a blank ``ffn_hidden_size`` is 4 x hidden_size.
        tokens: tokens of the step in this replica; every pipeline stage computes all of them.
        length: tokens of a sample.
        num_blocks: blocks of this rank's pipeline stage, over all its virtual stages.
        has_logits: whether this rank's pipeline stage is the last stage.
        mp_degree: number of ranks that every matrix product is split over. It divides the heads,
            ``ffn_hidden_size`` and ``vocab_size``.
    """
    hidden = model.hidden_size
    inner = model.ffn_hidden_size or 4 * hidden
    block = 8 * hidden * hidden + 4 * length * hidden + 4 * hidden * inner
    logits = 2 * hidden * model.vocab_size if has_logits else 0
    forward = tokens * (num_blocks * block + logits)
    return 3 * forward // mp_degree
