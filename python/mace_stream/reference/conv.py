"""The convolution, one coupling term at a time."""

from __future__ import annotations

import numpy as np

from mace_stream.couplings import ConvPlan


def conv(
    node_feats: np.ndarray,
    edge_attrs: np.ndarray,
    path_weights: np.ndarray,
    indptr: np.ndarray,
    sender: np.ndarray,
    plan: ConvPlan,
) -> np.ndarray:
    """Sum every edge's message into its receiver, ``[n_receivers, dim_out, channels]``.

    Arguments as in :func:`mace_stream.torch.conv`; real or complex.
    """
    dtype = np.result_type(node_feats, edge_attrs, path_weights)
    message = np.zeros((len(indptr) - 1, plan.dim_out, node_feats.shape[-1]), dtype)
    for receiver in range(len(indptr) - 1):
        for edge in range(indptr[receiver], indptr[receiver + 1]):
            feats = node_feats[sender[edge]]
            for (m_in, m_edge, path, m_out), value in zip(plan.terms, plan.values, strict=True):
                message[receiver, m_out] += (
                    value * path_weights[edge, path] * feats[m_in] * edge_attrs[edge, m_edge]
                )
    return message
