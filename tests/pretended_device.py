"""An accelerator that is none: it computes on the processor, reports itself as device `pretend` and counts.

Its tensors are a subclass of `torch.Tensor` whose memory is the processor's, under the dispatch keys of PyTorch's
backend for others to define (`privateuse1`); autograd, autocast, modules and optimisers see a device like any other.
Inside `pretended_device()`, what a real device would refuse is refused: tensors of two devices in one operation, those
of two layouts in a fused kernel, and, where asked, dtypes that it lacks. What it would be given is counted: kernels,
copies in both directions, and waits.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NAME = "pretend"


class Copy(NamedTuple):
    """A copy between the processor and the device."""

    num_bytes: int
    pinned: bool
    blocking: bool


@dataclass
class Counts:
    """What the device was given since the last `clear`."""

    kernels: Counter[str] = field(default_factory=Counter)  # by the name of the operation
    to_device: list[Copy] = field(default_factory=list)
    to_host: list[Copy] = field(default_factory=list)
    waits: Counter[str] = field(default_factory=Counter)  # by what waits
    on_kernel: Callable[[Any, Any, Any, Any], None] | None = None  # told of each with its arguments and its result

    def clear(self) -> None:
        """Count from zero."""
        for counted in (self.kernels, self.to_device, self.to_host, self.waits):
            counted.clear()


@dataclass
class _Pretence:
    counts: Counts
    lacks: tuple[torch.dtype, ...]
    pinned: list[Tensor] = field(default_factory=list)  # kept, so that no other tensor gets their memory
    under_way: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what is copied without waiting, and its copy

    def wait(self, reason: str) -> None:
        """Everything is done now, so what was being copied had to stay as it was."""
        self.counts.waits[reason] += 1
        for source, copied in self.under_way:
            assert torch.equal(source, copied), "memory was changed while it was being copied to the device"
        self.under_way.clear()

    def is_pinned(self, tensor: Tensor) -> bool:
        return any(tensor.untyped_storage().data_ptr() == kept.untyped_storage().data_ptr() for kept in self.pinned)


_now: _Pretence | None = None


class PretendedTensor(Tensor):
    """A tensor on the pretended device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, memory: Tensor) -> "PretendedTensor":
        return Tensor._make_subclass(cls, memory, False, dispatch_device=True, device_for_backend_keys=DEVICE)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            with torch.no_grad():
                copied = self.detach().clone()
            is_param = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_param else copied
        return memo[id(self)]  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()  # PyTorch's own refuses subclasses

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().__reduce_ex__(protocol)


def _memory(tensor: Tensor) -> Tensor:
    """The processor's view of a tensor; its own, wherever the tensor has since been moved to by `set_data`."""
    if not isinstance(tensor, PretendedTensor):
        return tensor
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _map(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """`function` of every tensor in nested containers; PyTorch's own is many times slower."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)([_map(part, function) for part in value])
    if isinstance(value, dict):
        return {key: _map(part, function) for key, part in value.items()}
    return value


# Kernels whose result's size, or error, the processor has to read.
WAITING = {
    *(aten.nonzero.default, aten.masked_select.default, aten.bincount.default, aten.equal.default),
    *(aten._unique2.default, aten.unique_dim.default, aten.repeat_interleave.Tensor),
    *(aten._linalg_eigh.default, aten._linalg_svd.default, aten.linalg_inv_ex.default),
}
MAKING = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}
MAKING |= {aten.new_empty_strided.default, aten._unsafe_view.default, aten.lift_fresh.default, aten.set_.source_Storage}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
COPYING = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}


def _launches(func: Any) -> bool:
    """Whether an operation is a kernel: memory that is only made, or looked at in another way, is none."""
    returned = func._schema.returns
    is_view = bool(returned) and returned[0].alias_info is not None and not returned[0].alias_info.is_write
    return func not in MAKING and not is_view


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation: refused, counted, and computed on the processor."""
    if func is torch.ops.prim.device.default:
        return DEVICE
    assert _now is not None, f"{func} on a tensor of a pretended device that is gone"
    tensors: list[Tensor] = []
    _map((args, kwargs), tensors.append)
    there = [isinstance(tensor, PretendedTensor) for tensor in tensors]
    if func is aten.is_pinned.default:
        return not there[0] and _now.is_pinned(tensors[0])
    if func is aten._pin_memory.default:
        _now.pinned.append(tensors[0].clone())
        return _now.pinned[-1]
    target = kwargs.get("device")
    on_device = torch.device(target).type == NAME if target is not None else any(there)
    # As on real devices: what computes number by number takes a single one from the processor.
    takes_numbers = torch.Tag.pointwise in func.tags
    foreign = [
        tuple(t.shape)
        for t, is_there in zip(tensors, there, strict=True)
        if not is_there and (t.ndim or not takes_numbers)
    ]
    if any(there) and foreign and func not in COPYING:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! "
            f"({func} of a processor's tensors of shapes {foreign})"
        )

    if str(func).startswith("aten._fused_"):
        _check_layouts(args)

    wrappers: dict[int, Tensor] = {}

    def unwrap(tensor: Tensor) -> Tensor:
        memory = _memory(tensor)
        wrappers[id(memory)] = tensor
        return memory

    inner_args, inner = _map((args, kwargs), unwrap)
    if target is not None:
        inner["device"] = torch.device("cpu") if on_device else target
    pins = inner.pop("pin_memory", None)
    with torch._C._DisableTorchDispatch():
        result = func(*inner_args, **inner)
    if pins:
        _now.pinned.append(result)

    def wrap(tensor: Tensor) -> Tensor:
        if id(tensor) in wrappers:
            return wrappers[id(tensor)]
        if on_device and tensor.dtype in _now.lacks:
            raise TypeError(f"the device has no {tensor.dtype} ({func})")
        return PretendedTensor(tensor) if on_device else tensor

    if _count(func, args, kwargs, tensors, there, on_device) and _now.counts.on_kernel is not None:
        _now.counts.on_kernel(func, inner_args, inner, result)
    return _map(result, wrap)


def _check_layouts(args: Any) -> None:
    """What a fused kernel is given of a parameter lies alike in memory; dimensions of one place do not matter."""
    lists = [value for value in args if isinstance(value, list) and value and isinstance(value[0], Tensor)]
    for together in zip(*lists, strict=True):
        shape = together[0].shape
        strides = [
            [s for s, num in zip(t.stride(), shape, strict=True) if num > 1] for t in together if t.shape == shape
        ]
        if any(stride != strides[0] for stride in strides):
            raise RuntimeError(f"a fused kernel wants tensors of the same layout, not of strides {strides}")


def _count(func: Any, args: Any, kwargs: Any, tensors: list[Tensor], there: list[bool], on_device: bool) -> bool:
    """Count an operation; returns whether it is a kernel."""
    assert _now is not None
    counts = _now.counts
    if func in COPYING and tensors:
        source, goes = (tensors[1], there[0]) if func is aten.copy_.default else (tensors[0], on_device)
        comes = isinstance(source, PretendedTensor)
        if func is not aten._foreach_copy_.default and goes != comes:
            last = args[2] if func is aten.copy_.default and len(args) > 2 else False
            blocking = not kwargs.get("non_blocking", last)
            pinned = _now.is_pinned(source if goes else tensors[0])
            copy = Copy(source.numel() * source.element_size(), pinned, blocking)
            (counts.to_device if goes else counts.to_host).append(copy)
            if goes and pinned and not blocking:
                _now.under_way.append((source, source.clone()))
            elif not goes:  # the processor reads what the device has yet to compute
                _now.wait("copy to the processor")
            return False
    if not on_device and not any(there):
        return False
    if func is aten._local_scalar_dense.default:
        _now.wait("reading a number")
        return False
    masks = func in INDEXING and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    if func in WAITING or masks:
        _now.wait(str(func))
    if not _launches(func):
        return False
    counts.kernels[str(func)] += 1
    return True


class _Mode(TorchDispatchMode):
    """Catches what starts on the processor: tensors made on, and copied to, the device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and looking whether something is costs more than most operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Module:
    """What PyTorch asks of `torch.pretend`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return _now is not None

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(_now is not None)

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It draws from the processor's generator."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [dtype for dtype in (torch.bfloat16, torch.float16) if _now is None or dtype not in _now.lacks]


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return _now is not None

    def has_primary_context(self, device_index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


# Once for the process, and nothing to see of it outside `pretended_device()`.
_setup_privateuseone_for_python_backend(NAME, _Module(), _Hook())
DEVICE = torch.device(NAME, 0)

# Autocast on a CUDA device, in short: products in the low dtype, what adds up or explodes in fp32.
LOWERED = (
    *("conv1d", "conv2d", "conv3d", "_convolution", "linear", "mm", "mv", "addmm", "addmv"),
    *("bmm", "baddbmm", "matmul", "prelu", "scaled_dot_product_attention"),
)
RAISED = (
    *("exp", "log", "pow.Tensor_Scalar", "rsqrt", "softplus", "layer_norm", "group_norm", "cosine_similarity", "cdist"),
    *("nll_loss", "nll_loss_nd", "cross_entropy_loss", "mse_loss", "kl_div", "logsumexp", "softmax.int"),
    *("log_softmax.int", "sum", "sum.dim_IntList", "prod", "cumsum", "norm.Scalar", "linalg_vector_norm"),
)
KEY = torch._C._dispatch_key_parse("AutocastPrivateUse1")
_AUTOCAST = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
_OTHERS = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_OTHERS.fallback(torch.library.fallthrough_kernel)


def _cast_to(name: str, lowers: bool) -> None:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(aten, packet), overload or "default")

    def cast(tensor: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype(NAME) if lowers else torch.float32
        takes = tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if takes and isinstance(tensor, PretendedTensor) else tensor

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            args, kwargs = _map((args, kwargs), cast)
            return operation(*args, **kwargs)

    _AUTOCAST.impl(name, run)


for _name in LOWERED:
    _cast_to(_name, True)
for _name in RAISED:
    _cast_to(_name, False)


@contextmanager
def pretended_device(*, lacks: tuple[torch.dtype, ...] = ()) -> Iterator[Counts]:
    """Inside, there is a device `pretend`, without the dtypes that it `lacks`; what it is given is counted."""
    global _now
    counts = Counts()
    was_lifting, was_swapping = (
        torch._C._only_lift_cpu_tensors(),
        torch.__future__.get_swap_module_params_on_conversion(),
    )
    with ExitStack() as stack:
        stack.callback(_return_to, _now)
        _now = _Pretence(counts, lacks)
        torch._C._set_only_lift_cpu_tensors(True)  # so that `new_tensor` copies where it is seen
        stack.callback(torch._C._set_only_lift_cpu_tensors, was_lifting)
        torch.__future__.set_swap_module_params_on_conversion(True)  # so that parameters become the device's
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, was_swapping)
        stack.enter_context(patch("torch.accelerator.current_accelerator", lambda check_available=False: DEVICE))
        stack.enter_context(patch("torch.accelerator.synchronize", _synchronise))
        if torch.float64 in lacks:
            stack.enter_context(patch("msvq.core.runtime.WITHOUT_FP64", (NAME,)))
        stack.enter_context(patch("msvq.train.optim.FUSED", ("cpu", NAME)))
        stack.enter_context(_Mode())  # type: ignore[no-untyped-call]
        yield counts


def _synchronise(device: Any = None) -> None:
    assert _now is not None
    _now.wait("synchronize")


def _return_to(before: _Pretence | None) -> None:
    global _now
    _now = before
