"""Names that configurations use for dtypes, reduce operations and collectives."""

from typing import Annotated

from simrank.config.quantity import one_of

# What both NCCL and simrank have, under torch's names; nccl-tests' spellings are accepted too.
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int32",
    "int64",
)
DTYPE_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "f8e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
}
REDOPS = ("sum", "prod", "min", "max", "avg")
REDOP_ALIASES = {"product": "prod"}
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "sendrecv",
)
COLLECTIVE_ALIASES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "bcast": "broadcast",
    "alltoall": "all_to_all",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoallv": "all_to_all_v",
    "all_to_allv": "all_to_all_v",
    "send_recv": "sendrecv",
}

# The keys of NCCL's tables: architecture, link between devices, vendor of the CPU.
NCCL_ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")
NCCL_WIRES = ("nvlink", "pci")
NCCL_HOSTS = ("intel", "amd")
NCCL_NETWORKS = ("ib", "roce", "efa", "tcpx", "tcpxo", "slingshot")
# What it has to choose from.
NCCL_ALGORITHMS = (
    "tree",
    "ring",
    "collnet_direct",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")

DtypeName = Annotated[str, one_of(DTYPES, DTYPE_ALIASES)]
RedopName = Annotated[str, one_of(REDOPS, REDOP_ALIASES)]
CollectiveName = Annotated[str, one_of(COLLECTIVES, COLLECTIVE_ALIASES)]
# Columns of the tables in configs/gemm/rows and configs/attention/rows.
MEASURED_DEVICES = ("a100_sxm", "b200_sxm", "b300_sxm", "gb200", "h100_sxm", "l40s", "mi355x")
