"""What the compiler refuses is refused, and as Triton refuses it; what it takes is taken.

`lines.txt` has a kernel on each line, its statements separated by `|`. The real compiler's front
end says which of them it takes.
"""

import contextlib
import importlib.util
import io
import pickle
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

import simrank
from simrank.kernels.compiler import compilation_errors

LINES = (Path(__file__).parent / "lines.txt").read_text().splitlines()
POINTERS = {
    "f": ("*fp32", "float32"), "h": ("*fp16", "float16"), "b": ("*bf16", "bfloat16"),
    "i": ("*i32", "int32"), "l": ("*i64", "int64"), "u": ("*u32", "uint32"),
    "s": ("*i16", "int16"), "us": ("*u16", "uint16"), "c": ("*i8", "int8"),
    "d": ("*fp64", "float64"), "e8": ("*fp8e5", "float8_e5m2"), "q": ("*i1", "bool"),
    "cp": ("*kfp32", "float32"),
}  # fmt: skip
HEAD = """
import triton
import triton.language as tl
GLOBAL, GCONST = 5, tl.constexpr(5)
@triton.jit
def add(a, b): return a + b
@triton.jit
def add2(a, b, c, d): return a + c, b + d
@triton.jit
def badtype(a, b): return (a + b).to(tl.int32)
def plain(x): return x
@triton.jit
def noret(p): tl.store(p, 1.0)
@triton.jit
def tworets(x):
    if x > 0:
        return 1
    else:
        return 2
@triton.jit
def earlyret(x):
    if x > 0:
        return 1
    return 2
@triton.jit
def recurse(x): return recurse(x)
@triton.jit
def needconst(n: tl.constexpr): return tl.arange(0, n)
"""
_STATEMENTS = ("tl.store", "tl.atomic_store", "tl.static_", "tl.device_", "tl.debug", "tl.assume")


def source_of(number, line):
    """The text of the kernel that a line stands for."""
    body = line.split("|")
    if len(body) == 1 and not line.startswith(_STATEMENTS) and " = " not in line:
        kept = line.split(" ")[0] in ("return", "del", "global", "raise", "yield", "assert")
        body = [line if kept else f"v = {line}"]
    names = ", ".join(name if name != "cp" else "cp: tl.const" for name in POINTERS)
    text = "\n".join(f"    {part}" for part in body)
    return f"@triton.jit\ndef k{number}({names}):\n{text}\n"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A module with a kernel for each line."""
    file = tmp_path_factory.mktemp("lines") / "lines_as_kernels.py"
    file.write_text(HEAD + "".join(source_of(*each) for each in enumerate(LINES)))
    spec = importlib.util.spec_from_file_location("lines_as_kernels", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler_refuses(kernel):
    """Whether the front end of the compiler for sm_90 refuses a kernel."""
    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    signature = {name: kind for name, (kind, _) in POINTERS.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs={}, attrs={})
    options = backend.parse_options({})
    functions = backend.get_codegen_implementation(options)
    try:
        module = source.make_ir(target, options, functions, backend.get_module_map(), context)
        return not module.verify() if hasattr(module, "verify") else False
    except Exception:  # noqa: BLE001 - whatever it has against the kernel
        return True


def simulation_refuses(ctx, kernel):
    """Whether a launch is refused."""
    tensors = [ctx.zeros(4096, dtype=dtype) for _, dtype in POINTERS.values()]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            kernel[(1,)](*tensors)
            ctx.cuda.synchronize()
    except Exception:  # noqa: BLE001 - likewise
        return True
    return False


def differences(kernels, numbers):
    """The lines of which one side takes what the other one refuses."""
    found = []

    def body(ctx):
        for number in numbers:
            kernel = getattr(kernels, f"k{number}")
            ours, theirs = simulation_refuses(ctx, kernel), compiler_refuses(kernel)
            if ours != theirs:
                found.append((LINES[number], f"ours: {ours}, compiler: {theirs}"))

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: body(ctx), nprocs=1)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lines_are_refused_as_the_compiler_refuses_them(kernels):
    """Types, shapes, dtypes of atomics, constant pointers, statements, variables of loops."""
    assert differences(kernels, range(len(LINES))) == []


# ---- the types of what is raised ----


@triton.jit
def writes_a_constant(p: tl.const, N: tl.constexpr):
    tl.store(p + tl.arange(0, N), 1.0)


@triton.jit
def adds_to_words(p, N: tl.constexpr):
    tl.atomic_add(p + tl.arange(0, N), 1)


@triton.jit
def names_nothing(p):
    tl.store(p, nothing)  # noqa: F821 - what it is about


@triton.jit
def reads_a_variable(p):
    tl.store(p, LINES)


@triton.jit
def breaks(p):
    for n in range(4):
        if tl.load(p) > n:
            break


@triton.jit
def carries_another_type(p):
    total = 0
    for _ in range(4):
        total += 0.5
    tl.store(p, total)


@triton.jit
def defines_in_a_loop(p):
    for n in range(4):
        last = n
    tl.store(p, last)


@triton.jit
def changes_a_type(p):
    x = 1
    if tl.load(p) == 0:
        x = 1.5
    tl.store(p, x)


@triton.jit
def asserts_a_value(p):
    tl.static_assert(tl.load(p) == 0)


@pytest.mark.parametrize(
    ("kernel", "dtype", "kind", "words"),
    [
        (writes_a_constant, "float32", ValueError, "Cannot store to a constant pointer"),
        (adds_to_words, "uint16", ValueError, "atomic_add does not support uint16"),
        (names_nothing, "int32", NameError, "nothing"),
        (reads_a_variable, "int32", NameError, "Cannot access global variable LINES"),
        (breaks, "int32", triton.CompilationError, "unsupported AST node type: Break"),
        (carries_another_type, "int32", AssertionError, "initial type int32"),
        (defines_in_a_loop, "int32", NameError, "last"),
        (changes_a_type, "int32", AssertionError, "initial value for `x` is of type int32"),
        (asserts_a_value, "int32", NotImplementedError, "at compile-time"),
    ],
)
def test_a_refusal_has_tritons_type_and_names_the_line(kernel, dtype, kind, words):
    """It is caught as Triton's error and as Python's, whose cause it is; it goes to processes."""

    def body(ctx):
        options = {"N": 4} if "N" in kernel.arg_names else {}
        with pytest.raises(triton.CompilationError, match=words) as caught:
            kernel[(1,)](ctx.zeros(4, dtype=dtype), **options)
            ctx.cuda.synchronize()
        error = caught.value
        assert isinstance(error, kind)
        assert f"def {kernel.__name__}" in str(error)
        assert type(pickle.loads(pickle.dumps(error))) is type(error)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: body(ctx), nprocs=1)


def test_an_error_of_the_program_itself_keeps_its_type():
    """Nothing but Python's own exceptions is the compiler's."""

    class OwnError(Exception):
        pass

    def body():
        raise OwnError

    with pytest.raises(OwnError):
        compilation_errors.raising(body, writes_a_constant, 1)()
