"""The contest's DeepFM as an ONNX graph, and its session in ONNX Runtime.

    logit = b + Σ s w + ½ (‖Σ v‖² − Σ ‖v‖²) + MLP([v_1 … v_F])

Inputs: `shared` f32[1, F_shared, 17] of the user and the visit, `own` f32[n, F_own, 17] of the ads; a row is
[w | v]. Output: `probability` f32[n].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

F32 = NDArray[np.float32]
FLOATS = 17
"""Values of a row, [w | v]."""


class Ranked(TypedDict):
    """Places of the ads in the request, best first, with their probabilities and expected revenue."""

    index: list[int]
    pctr: list[float]
    ecpm: list[float]


class Network:
    """Session of the network, and the vectors of a visit's fields.

    Args:
        file: .npz of `bench.serving.ids_version`.

    Attributes:
        users: f32[n, F_user, 17]; a peer may leave them to a store.
        ads: f32[n, F_ad, 17].
    """

    def __init__(self, file: str) -> None:
        stored = np.load(file)
        weights = {name: stored[name] for name in stored.files}
        self.users, self.ads = weights["users"], weights["ads"]
        self._visit = {n.removeprefix("visit."): v for n, v in weights.items() if n.startswith("visit.")}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the clients and Redis need the other core
        self._session = onnxruntime.InferenceSession(
            graph(weights), options, providers=["CPUExecutionProvider"]
        )

    def rank(self, context: Mapping[str, int], user: F32, ads: F32, bids: Sequence[float]) -> Ranked:
        """Score and sort ads.

        Args:
            context: field of the visit → id.
            user: row of the user, f32[F_user · 17] or f32[F_user, 17].
            ads: rows of the ads, f32[n, F_ad, 17].
            bids: n values.
        """
        pctr = self.probabilities(self.arrays(context, user, ads))
        ecpm = np.array(bids) * pctr
        order = np.argsort(-ecpm)
        return {"index": order.tolist(), "pctr": pctr[order].tolist(), "ecpm": ecpm[order].tolist()}

    def arrays(self, context: Mapping[str, int], user: F32, ads: F32) -> dict[str, F32]:
        """Inputs of the graph; arguments as of `rank`."""
        visit = [table[context[name]] for name, table in self._visit.items()]
        shared = np.concatenate([user.reshape(-1, FLOATS), np.stack(visit)])[None]
        return {"shared": shared, "own": ads}

    def probabilities(self, arrays: Mapping[str, F32]) -> F32:
        """Probabilities f32[n] of the graph."""
        (pctr,) = self._session.run(["probability"], dict(arrays))
        out: F32 = pctr
        return out


def graph(weights: Mapping[str, F32]) -> bytes:
    """The graph, serialised."""
    width = weights["first"].shape[0]
    constants = {
        **{name: weights[name] for name in ("first", "scale")},
        "b1": weights["mlp.first_bias"], "w2": weights["mlp.weights.0"], "b2": weights["mlp.biases.0"],
        "w3": weights["mlp.weights.1"], "b3": weights["mlp.biases.1"], "bias": weights["bias"].reshape(1),
        "half": np.array([0.5], np.float32), "zero": np.array([0]), "one": np.array([1]),
        "end": np.array([1 << 30]), "value": np.array([2]), "field": np.array([1]),
        "both": np.array([1, 2]), "flat": np.array([-1, width]), "column": np.array([-1]),
        "all": np.array([1, 1]), "first_axis": np.array([0]),
    }  # fmt: skip
    steps = [
        ("Shape", ["own"], "own_shape"),
        ("Slice", ["own_shape", "zero", "one", "first_axis"], "n"),
        ("Concat", ["n", "all"], "copies"),
        ("Expand", ["shared", "copies"], "spread"),
        ("Concat1", ["spread", "own"], "rows"),
        ("Slice", ["rows", "zero", "one", "value"], "w3d"),
        ("Squeeze", ["w3d", "value"], "w"),
        ("Slice", ["rows", "one", "end", "value"], "v"),
        ("Mul", ["w", "scale"], "sw"),
        ("ReduceSum", ["sw", "field"], "first_order"),
        ("ReduceSum", ["v", "field"], "sum"),
        ("Mul", ["sum", "sum"], "sum_square"),
        ("ReduceSum", ["sum_square", "field"], "of_sum"),
        ("Mul", ["v", "v"], "squares"),
        ("ReduceSum", ["squares", "both"], "of_each"),
        ("Sub", ["of_sum", "of_each"], "pairs"),
        ("Mul", ["pairs", "half"], "second_order"),
        ("Reshape", ["v", "flat"], "x"),
        ("Gemm", ["x", "first", "b1"], "h1"),
        ("Relu", ["h1"], "a1"),
        ("Gemm", ["a1", "w2", "b2"], "h2"),
        ("Relu", ["h2"], "a2"),
        ("Gemm", ["a2", "w3", "b3"], "deep2d"),
        ("Reshape", ["deep2d", "column"], "deep"),
        ("Add", ["first_order", "second_order"], "wide"),
        ("Add", ["wide", "deep"], "unbiased"),
        ("Add", ["unbiased", "bias"], "logit"),
        ("Sigmoid", ["logit"], "probability"),
    ]
    nodes = [_node(operator, inputs, output) for operator, inputs, output in steps]
    initial = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    size = weights["first"].shape[0] // len(weights["scale"]) + 1
    inputs = [
        helper.make_tensor_value_info("shared", TensorProto.FLOAT, [1, None, size]),
        helper.make_tensor_value_info("own", TensorProto.FLOAT, [None, None, size]),
    ]
    outputs = [helper.make_tensor_value_info("probability", TensorProto.FLOAT, [None])]
    made = helper.make_graph(nodes, "deepfm", inputs, outputs, initial)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    out: bytes = model.SerializeToString()
    return out


def _node(operator: str, inputs: list[str], output: str) -> object:
    if operator == "ReduceSum":
        return helper.make_node("ReduceSum", inputs, [output], keepdims=0)
    if operator.startswith("Concat"):
        return helper.make_node("Concat", inputs, [output], axis=int(operator[6:] or 0))
    return helper.make_node(operator, inputs, [output])
