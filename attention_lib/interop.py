"""Weights in and out, under the names that other libraries give them.

:func:`load_weights` and :func:`dump_weights` translate the ``state_dict`` of a
:class:`~attention_lib.MultiHeadAttention` or a
:class:`~attention_lib.TransformerBlock`; :func:`from_torch` and :func:`to_torch` make a
layer from ``nn.MultiheadAttention`` and back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attention_lib._names import Names, entries_of, shape_of, weights_of
from attention_lib.block import TransformerBlock
from attention_lib.layers import MultiHeadAttention

__all__ = ["dump_weights", "from_torch", "load_weights", "to_torch"]


def load_weights(
    module: MultiHeadAttention | TransformerBlock,
    state_dict: Mapping[str, Tensor],
    *,
    names: Names,
    prefix: str = "",
) -> None:
    """Fill a module with weights that carry another library's names.

    Parameters
    ----------
    module
        The layer or block to fill, in place. Dtypes are converted.
    state_dict
        Their weights. Keys without the prefix are left alone.
    names
        Whose names they are: ``"torch"`` for ``nn.MultiheadAttention`` and
        ``nn.TransformerEncoderLayer``; ``"bert"``, ``"gpt2"`` or ``"llama"`` for the
        checkpoints of these models and of those that took over their names.
    prefix
        What stands before the names, ``"h.0.attn."`` say.

    Raises
    ------
    ValueError
        If keys are missing or unexpected, or a shape differs, or the module has weights
        for which there is no name. The message lists them all, and nothing is loaded.

    Examples
    --------
    >>> layer = MultiHeadAttention(8, 2)
    >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> load_weights(layer, theirs.state_dict(), names="torch")
    >>> x = torch.randn(3, 5, 8)
    >>> torch.allclose(layer(x), theirs(x, x, x)[0], atol=1e-6)
    True
    >>> load_weights(layer, {"c_attn.weight": torch.ones(8, 24)}, names="gpt2")
    Traceback (most recent call last):
    ...
    ValueError: missing: c_attn.bias, c_proj.bias, c_proj.weight; unexpected: none
    """
    own = weights_of(module)
    entries, beside = entries_of(module, names, own)
    given = {
        name.removeprefix(prefix): tensor
        for name, tensor in state_dict.items()
        if name.startswith(prefix)
    }
    expected = {entry.theirs for entry in entries}
    missing = sorted(expected - given.keys())
    unexpected = sorted(given.keys() - expected - beside)
    if missing or unexpected:
        raise ValueError(
            f"missing: {', '.join(missing) or 'none'}; "
            f"unexpected: {', '.join(unexpected) or 'none'}"
        )
    for entry in entries:
        shape, wanted = tuple(given[entry.theirs].shape), shape_of(entry, own)
        if shape != wanted:
            raise ValueError(f"{entry.theirs} has shape {shape}, expected {wanted}")
    with torch.no_grad():
        for entry in entries:
            tensor = given[entry.theirs]
            tensor = tensor.T if entry.transposed else tensor
            parts = tensor.split([own[name].shape[0] for name in entry.ours])
            for name, part in zip(entry.ours, parts, strict=True):
                own[name].copy_(part)


def dump_weights(
    module: MultiHeadAttention | TransformerBlock,
    *,
    names: Names,
    prefix: str = "",
) -> dict[str, Tensor]:
    """The weights of a module under another library's names.

    Parameters
    ----------
    module
        The layer or block to read.
    names
        Whose names to use, as in :func:`load_weights`.
    prefix
        What to put before the names.

    Returns
    -------
    dict[str, Tensor]
        Copies, in the module's dtype on its device.

    Raises
    ------
    ValueError
        If the module has weights for which there is no name.

    Examples
    --------
    >>> sorted(dump_weights(MultiHeadAttention(8, 2, bias=False), names="gpt2"))
    ['c_attn.weight', 'c_proj.weight']
    """
    own = weights_of(module)
    dumped = {}
    for entry in entries_of(module, names, own)[0]:
        tensor = torch.cat([own[name] for name in entry.ours])
        dumped[prefix + entry.theirs] = (
            tensor.T.contiguous() if entry.transposed else tensor
        )
    return dumped


def from_torch(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    """A layer with the weights, dropout and mode of ``nn.MultiheadAttention``.

    Parameters
    ----------
    theirs
        Either layout of the batch; the new layer takes (B, L, E).

    Raises
    ------
    ValueError
        If it was made with ``add_bias_kv`` or ``add_zero_attn``.

    Examples
    --------
    >>> theirs = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True)
    >>> query, key, value = (torch.randn(3, n, d) for n, d in ((4, 8), (7, 6), (7, 5)))
    >>> output = from_torch(theirs)(query, key, value)
    >>> torch.allclose(output, theirs(query, key, value)[0], atol=1e-6)
    True
    """
    if theirs.bias_k is not None or theirs.add_zero_attn:
        raise ValueError(
            "add_bias_kv and add_zero_attn put in keys that no token has: "
            "there is no such layer here"
        )
    weight = theirs.out_proj.weight
    E = theirs.embed_dim
    one_input = theirs.kdim == theirs.vdim == E  # then one product makes all three
    ours = MultiHeadAttention(
        E,
        theirs.num_heads,
        kdim=None if one_input else theirs.kdim,
        vdim=None if one_input else theirs.vdim,
        dropout=theirs.dropout,
        bias=theirs.in_proj_bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    load_weights(ours, theirs.state_dict(), names="torch")
    return ours.train(theirs.training)


def to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """``nn.MultiheadAttention`` with the weights, dropout and mode of a layer.

    Parameters
    ----------
    ours
        A layer without what theirs lacks: grouped heads, a head width other than E / H,
        rotary, score bias, norms, a scale or soft cap of its own.

    Returns
    -------
    nn.MultiheadAttention
        With ``batch_first=True``.

    Raises
    ------
    ValueError
        If the layer has something that theirs lacks; the message names it.

    Examples
    --------
    >>> ours = MultiHeadAttention(8, 2)
    >>> x = torch.randn(3, 5, 8)
    >>> torch.allclose(to_torch(ours)(x, x, x)[0], ours(x), atol=1e-6)
    True
    """
    (_, bias), (_, key_bias), _ = ours.parts()
    has_bias = bias is not None
    beyond = {
        "num_kv_heads": ours.num_kv_heads != ours.num_heads,
        "head_dim": ours.head_dim * ours.num_heads != ours.embed_dim,
        "key_bias": (key_bias is not None) != has_bias,
        "out_bias": (ours.out_proj.bias is not None) != has_bias,
        "rotary": ours.rotary is not None,
        "score_bias": ours.score_bias is not None,
        "query_norm": ours.query_norm is not None,
        "key_norm": ours.key_norm is not None,
        "scale": ours.scale is not None,
        "softcap": ours.softcap is not None,
    }
    found = [name for name, present in beyond.items() if present]
    if found:
        raise ValueError(f"nn.MultiheadAttention has no {', '.join(found)}")
    weight = ours.out_proj.weight
    theirs = nn.MultiheadAttention(
        ours.embed_dim,
        ours.num_heads,
        kdim=ours.kdim,
        vdim=ours.vdim,
        dropout=ours.dropout,
        bias=has_bias,
        batch_first=True,
        device=weight.device,
        dtype=weight.dtype,
    )
    theirs.load_state_dict(dump_weights(ours, names="torch"))
    return theirs.train(ours.training)
