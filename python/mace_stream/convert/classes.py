"""Classes of mace-torch and e3nn that the converter understands, by qualified name."""

from __future__ import annotations

MODELS = {
    "mace.modules.models.MACE": "MACE",
    "mace.modules.models.ScaleShiftMACE": "ScaleShiftMACE",
}
BLOCKS = {
    "mace.modules.blocks.RealAgnosticInteractionBlock": "R",
    "mace.modules.blocks.RealAgnosticResidualInteractionBlock": "RR",
    "mace.modules.blocks.RealAgnosticDensityInteractionBlock": "D",
    "mace.modules.blocks.RealAgnosticDensityResidualInteractionBlock": "DR",
    "mace.modules.blocks.RealAgnosticResidualNonLinearInteractionBlock": "NL",
}
BASES = {
    "mace.modules.radial.BesselBasis": "bessel",
    "mace.modules.radial.GaussianBasis": "gaussian",
    "mace.modules.radial.ChebychevBasis": "chebyshev",
}
TRANSFORMS = {
    "mace.modules.radial.AgnesiTransform": "agnesi",
    "mace.modules.radial.SoftTransform": "soft",
}
READOUTS = {
    "mace.modules.blocks.LinearReadoutBlock": "linear",
    "mace.modules.blocks.NonLinearReadoutBlock": "nonlinear",
}

LINEAR = "e3nn.o3._linear.Linear"
TENSOR_PRODUCT = "e3nn.o3._tensor_product._tensor_product.TensorProduct"
FULLY_CONNECTED = "e3nn.o3._tensor_product._sub.FullyConnectedTensorProduct"
HARMONICS = "e3nn.o3._spherical_harmonics.SphericalHarmonics"
NETWORK = "e3nn.nn._fc.FullyConnectedNet"
NETWORK_LAYER = "e3nn.nn._fc._Layer"
ACTIVATION = "e3nn.nn._activation.Activation"
NORMALIZED = "e3nn.math._normalize_activation.normalize2mom"
CONTRACTIONS = "mace.modules.symmetric_contraction.SymmetricContraction"
CONTRACTION = "mace.modules.symmetric_contraction.Contraction"
PRODUCT = "mace.modules.blocks.EquivariantProductBasisBlock"
EMBEDDING = "mace.modules.blocks.LinearNodeEmbeddingBlock"
RADIAL_EMBEDDING = "mace.modules.blocks.RadialEmbeddingBlock"
ENERGIES = "mace.modules.blocks.AtomicEnergiesBlock"
SCALE_SHIFT = "mace.modules.blocks.ScaleShiftBlock"
CUTOFF = "mace.modules.radial.PolynomialCutoff"
ZBL = "mace.modules.radial.ZBLBasis"
RESHAPE = "mace.modules.irreps_tools.reshape_irreps"
GATES = ("mace.modules.gate.GatedEquivariantBlock", "e3nn.nn._gate.Gate")
RADIAL_MLP = "mace.modules.radial.RadialMLP"
JOINT_EMBEDDING = "mace.modules.embeddings.GenericJointEmbedding"
EMBEDDING_TABLE = "torch.nn.modules.sparse.Embedding"
DENSE = "torch.nn.modules.linear.Linear"
LAYER_NORM = "torch.nn.modules.normalization.LayerNorm"
SILU = "torch.nn.modules.activation.SiLU"
SEQUENTIAL = "torch.nn.modules.container.Sequential"
MODULE_DICT = "torch.nn.modules.container.ModuleDict"
PARAMETER_LIST = "torch.nn.modules.container.ParameterList"

_CONTAINERS_AND_CODE = {
    "torch.nn.modules.container.ModuleList",
    PARAMETER_LIST,
    SEQUENTIAL,
    MODULE_DICT,
    "torch.jit._script.RecursiveScriptModule",
    "torch.fx.graph_module.GraphModule",
    "torch.fx.graph_module.GraphModule.__new__.<locals>.GraphModuleImpl",
}

_PARTS_OF_E3NN_GATES = {
    "e3nn.nn._gate._Sortcut",
    "e3nn.nn._extract.Extract",
    "e3nn.o3._tensor_product._sub.ElementwiseTensorProduct",
}

KNOWN = frozenset(
    {*MODELS, *BLOCKS, *BASES, *TRANSFORMS, *READOUTS, *_CONTAINERS_AND_CODE}
    | {LINEAR, TENSOR_PRODUCT, FULLY_CONNECTED, HARMONICS, NETWORK, NETWORK_LAYER, ACTIVATION}
    | {NORMALIZED, CONTRACTIONS, CONTRACTION, PRODUCT, EMBEDDING, RADIAL_EMBEDDING, ENERGIES}
    | {SCALE_SHIFT, CUTOFF, ZBL, RESHAPE, *GATES, RADIAL_MLP, DENSE, LAYER_NORM, SILU}
    | {JOINT_EMBEDDING, EMBEDDING_TABLE, *_PARTS_OF_E3NN_GATES}
)

_LONG_RANGE = "long-range term: cannot be evaluated from edges within the cutoff"
_DIPOLES = "dipoles or polarizabilities: no interatomic potential"
REASONS = {
    "mace.modules.extensions.MACELES": _LONG_RANGE,
    "mace.modules.extensions.PolarMACE": _LONG_RANGE,
    "les.les.Les": _LONG_RANGE,
    "mace.modules.models.AtomicDipolesMACE": _DIPOLES,
    "mace.modules.models.AtomicDielectricMACE": _DIPOLES,
    "mace.modules.models.EnergyDipolesMACE": _DIPOLES,
    "mace.modules.blocks.RealAgnosticAttResidualInteractionBlock": "attention interaction",
    "mace.modules.lora.LoRAO3Linear": "merge the LoRA weights in mace-torch first",
    "mace.modules.lora.LoRADenseLinear": "merge the LoRA weights in mace-torch first",
    "mace.modules.lora.LoRAFCLayer": "merge the LoRA weights in mace-torch first",
}
