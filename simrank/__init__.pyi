"""What `import simrank` offers, for type checkers; made by tests/test_namespace.py.

To make it anew: SIMRANK_UPDATE=1 pytest tests/test_namespace.py
"""

from typing import Any

from simrank import bench as bench
from simrank import distributed as distributed
from simrank import errors as errors
from simrank import explore as explore
from simrank import multiprocessing as multiprocessing
from simrank import validate as validate
from simrank.context import Context as Context
from simrank.device import DType
from simrank.device import Event as Event
from simrank.device import Stream as Stream
from simrank.device import Tensor as Tensor
from simrank.device.dtypes import promote
from simrank.device.tensors import factories, indexing, joining, products
from simrank.device.tensors.namespace import CURRENT
from simrank.errors import OutOfMemoryError as OutOfMemoryError
from simrank.planning.predict import predict as predict
from simrank.planning.predict import predict_attention as predict_attention
from simrank.planning.predict import predict_gemm as predict_gemm

__version__: str

def __dir__() -> list[str]: ...

Size = tuple[int, ...]
dtype = DType

class device:
    """A device, as torch.device: its name, its index, or both."""

    type: str
    index: int | None
    def __new__(cls, device: object, index: int | None = None) -> Any: ...

bfloat16: DType
double: DType
float16: DType
float32: DType
float64: DType
float8_e4m3fn: DType
float8_e5m2: DType
half: DType
int16: DType
int32: DType
int64: DType
int8: DType
long: DType
short: DType
uint16: DType
uint32: DType
uint64: DType
uint8: DType
bool: DType
abs = Tensor.abs
abs_ = Tensor.abs_
absolute = Tensor.absolute
add = Tensor.add
add_ = Tensor.add_
addcdiv = Tensor.addcdiv
addcdiv_ = Tensor.addcdiv_
addcmul = Tensor.addcmul
addcmul_ = Tensor.addcmul_
addmm = Tensor.addmm
all = Tensor.all
allclose = Tensor.allclose
amax = Tensor.amax
amin = Tensor.amin
any = Tensor.any
arange = factories.arange
argmax = Tensor.argmax
argmin = Tensor.argmin
argsort = Tensor.argsort
as_tensor = factories.as_tensor
backward = Tensor.backward
bitwise_and = Tensor.bitwise_and
bitwise_and_ = Tensor.bitwise_and_
bitwise_not = Tensor.bitwise_not
bitwise_or = Tensor.bitwise_or
bitwise_or_ = Tensor.bitwise_or_
bitwise_xor = Tensor.bitwise_xor
bmm = Tensor.bmm
broadcast_to = Tensor.broadcast_to
byte = Tensor.byte
cat = joining.cat
ceil = Tensor.ceil
char = Tensor.char
chunk = Tensor.chunk
clamp = Tensor.clamp
clamp_ = Tensor.clamp_
clip = Tensor.clip
clone = Tensor.clone
concat = joining.cat
cos = Tensor.cos
cuda = CURRENT.cuda
cumprod = Tensor.cumprod
cumsum = Tensor.cumsum
current_stream = CURRENT.current_stream
detach = Tensor.detach
diagonal = Tensor.diagonal
div = Tensor.div
div_ = Tensor.div_
divide = Tensor.divide
dot = Tensor.dot
einsum = products.einsum
empty = factories.empty
empty_like = factories.empty_like
eq = Tensor.eq
equal = Tensor.equal
erf = Tensor.erf
exp = Tensor.exp
exp2 = Tensor.exp2
exp_ = Tensor.exp_
expm1 = Tensor.expm1
eye = factories.eye
flatten = Tensor.flatten
flip = Tensor.flip
floor = Tensor.floor
floor_divide = Tensor.floor_divide
from_dlpack = factories.from_dlpack
from_numpy = factories.from_numpy
full = factories.full
full_like = factories.full_like
gather = Tensor.gather
ge = Tensor.ge
gelu = Tensor.gelu
gt = Tensor.gt
index_add_ = Tensor.index_add_
index_select = Tensor.index_select
inference_mode = CURRENT.inference_mode
is_floating_point = Tensor.is_floating_point
is_tensor = CURRENT.is_tensor
isclose = Tensor.isclose
isfinite = Tensor.isfinite
isinf = Tensor.isinf
isnan = Tensor.isnan
le = Tensor.le
lerp = Tensor.lerp
lerp_ = Tensor.lerp_
linspace = factories.linspace
log = Tensor.log
log10 = Tensor.log10
log1p = Tensor.log1p
log2 = Tensor.log2
log_ = Tensor.log_
log_softmax = Tensor.log_softmax
logical_and = Tensor.logical_and
logical_not = Tensor.logical_not
logical_or = Tensor.logical_or
logical_xor = Tensor.logical_xor
logsumexp = Tensor.logsumexp
lt = Tensor.lt
manual_seed = factories.manual_seed
masked_fill = Tensor.masked_fill
masked_fill_ = Tensor.masked_fill_
masked_select = Tensor.masked_select
matmul = Tensor.matmul
max = Tensor.max
maximum = Tensor.maximum
mean = Tensor.mean
min = Tensor.min
minimum = Tensor.minimum
mm = Tensor.mm
movedim = Tensor.movedim
mul = Tensor.mul
mul_ = Tensor.mul_
multiply = Tensor.multiply
mv = Tensor.mv
narrow = Tensor.narrow
ne = Tensor.ne
neg = Tensor.neg
neg_ = Tensor.neg_
negative = Tensor.negative
no_grad = CURRENT.no_grad
nonzero = Tensor.nonzero
norm = Tensor.norm
numel = Tensor.numel
ones = factories.ones
ones_like = factories.ones_like
outer = Tensor.outer
permute = Tensor.permute
pow = Tensor.pow
pow_ = Tensor.pow_
prod = Tensor.prod
promote_types = promote
rand = factories.rand
rand_like = factories.rand_like
randint = factories.randint
randint_like = factories.randint_like
randn = factories.randn
randn_like = factories.randn_like
randperm = factories.randperm
reciprocal = Tensor.reciprocal
reciprocal_ = Tensor.reciprocal_
register_hook = Tensor.register_hook
relu = Tensor.relu
relu_ = Tensor.relu_
remainder = Tensor.remainder
repeat_interleave = Tensor.repeat_interleave
requires_grad_ = Tensor.requires_grad_
reshape = Tensor.reshape
retain_grad = Tensor.retain_grad
roll = Tensor.roll
round = Tensor.round
rsqrt = Tensor.rsqrt
rsqrt_ = Tensor.rsqrt_
scatter_ = Tensor.scatter_
scatter_add_ = Tensor.scatter_add_
select = Tensor.select
sigmoid = Tensor.sigmoid
sigmoid_ = Tensor.sigmoid_
sign = Tensor.sign
silu = Tensor.silu
sin = Tensor.sin
softmax = Tensor.softmax
sort = Tensor.sort
split = Tensor.split
sqrt = Tensor.sqrt
sqrt_ = Tensor.sqrt_
square = Tensor.square
square_ = Tensor.square_
squeeze = Tensor.squeeze
stack = joining.stack
std = Tensor.std
stream = CURRENT.stream
sub = Tensor.sub
sub_ = Tensor.sub_
subtract = Tensor.subtract
sum = Tensor.sum
swapaxes = Tensor.swapaxes
swapdims = Tensor.swapdims
synchronize = CURRENT.synchronize
t = Tensor.t
tanh = Tensor.tanh
tanh_ = Tensor.tanh_
tensor = factories.tensor
tensor_split = Tensor.tensor_split
topk = Tensor.topk
transpose = Tensor.transpose
tril = Tensor.tril
triu = Tensor.triu
true_divide = Tensor.true_divide
trunc = Tensor.trunc
unbind = Tensor.unbind
unflatten = Tensor.unflatten
unsqueeze = Tensor.unsqueeze
var = Tensor.var
where = indexing.where
zeros = factories.zeros
zeros_like = factories.zeros_like
