"""Layers of neural networks, their gradients, and training: cuDNN and PyTorch's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from check import FLOATS, HALVES, Check
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION_BACKENDS = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)


def _convolutions(device: str) -> Iterator[Check]:
    """cuDNN: one to three dimensions, groups, strides, dilation, transposed, in both memory layouts."""
    functions = {
        1: (F.conv1d, F.conv_transpose1d),
        2: (F.conv2d, F.conv_transpose2d),
        3: (F.conv3d, F.conv_transpose3d),
    }
    for dtype in FLOATS:
        for dimensions, (forward, transposed) in functions.items():
            for groups in (1, 8):

                def convolve(
                    dtype: torch.dtype = dtype, dimensions: int = dimensions, groups: int = groups,
                    forward: Callable[..., torch.Tensor] = forward,
                    transposed: Callable[..., torch.Tensor] = transposed,
                ) -> object:  # fmt: skip
                    x = torch.randn(4, 16, *[18] * dimensions, device=device, dtype=dtype, requires_grad=True)
                    w = torch.randn(
                        32, 16 // groups, *[3] * dimensions, device=device, dtype=dtype, requires_grad=True
                    )
                    y = forward(x, w, stride=2, padding=1, groups=groups)
                    z = forward(x, w, dilation=2, groups=groups)
                    u = transposed(y, w, stride=2, groups=groups)
                    (y.sum() + z.square().sum() + u.sum()).backward()
                    return y, z, u, x.grad, w.grad

                yield f"{dimensions}d {groups} groups {dtype}", convolve

        def channels_last(dtype: torch.dtype = dtype) -> object:
            x = torch.randn(8, 64, 56, 56, device=device, dtype=dtype).to(memory_format=torch.channels_last)
            layer = nn.Conv2d(64, 128, 3, padding=1, device=device, dtype=dtype).to(
                memory_format=torch.channels_last
            )
            y = layer(x).relu()
            y.float().mean().backward()
            return y, layer.weight.grad, layer.bias.grad

        yield f"channels last {dtype}", channels_last

    def tuned() -> object:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True):
            x = torch.randn(16, 64, 32, 32, device=device)
            return F.conv2d(x, torch.randn(64, 64, 3, 3, device=device), padding=1)

    yield "tf32", tuned


def _attention(device: str) -> Iterator[Check]:
    """Every attention kernel, forward and backward, causal and not, several head sizes."""
    for backend in ATTENTION_BACKENDS:
        for dtype in HALVES:
            for size in (64, 80, 128, 256):
                call = partial(_attend, device, backend, dtype, size)
                yield f"{backend.name} {size} {dtype}", partial(call, backward=False)
                yield f"{backend.name} {size} {dtype} gradients", partial(call, backward=True)

    def encoder() -> object:
        layer = nn.TransformerEncoderLayer(256, 8, 512, batch_first=True, device=device).eval()
        with torch.no_grad():
            return layer(torch.randn(4, 50, 256, device=device))

    yield "encoder layer's fast path", encoder


def _attend(device: str, backend: SDPBackend, dtype: torch.dtype, size: int, *, backward: bool) -> object:
    shape = (2, 8, 333, size)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=backward) for _ in range(3))
    with sdpa_kernel(backend):
        y = F.scaled_dot_product_attention(q, k, v)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if not backward:
        return y, z
    (y.float().sum() + z.float().square().sum()).backward()
    return q.grad, k.grad, v.grad


def _recurrent(device: str) -> Iterator[Check]:
    """cuDNN's recurrent networks."""
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dtype in (torch.float32, torch.float16):

            def recur(kind: type[nn.RNNBase] = kind, dtype: torch.dtype = dtype) -> object:
                net = kind(64, 128, 2, bidirectional=True, batch_first=True, device=device, dtype=dtype)
                x = torch.randn(8, 30, 64, device=device, dtype=dtype, requires_grad=True)
                y, state = net(x)
                y.float().sum().backward()
                return y, state, x.grad, [one.grad for one in net.parameters()]

            yield f"{kind.__name__} {dtype}", recur


def _normalizations(device: str) -> Iterator[Check]:
    for dtype in (torch.float32, torch.bfloat16):

        def normalize(dtype: torch.dtype = dtype) -> object:
            x = torch.randn(16, 64, 28, 28, device=device, dtype=dtype, requires_grad=True)
            layers = (
                nn.BatchNorm2d(64),
                nn.GroupNorm(8, 64),
                nn.InstanceNorm2d(64),
                nn.LayerNorm(28),
                nn.RMSNorm(28),
            )
            outputs = [layer.to(device, dtype)(x) for layer in layers]
            torch.stack([y.float().square().sum() for y in outputs]).sum().backward()
            return outputs, x.grad

        yield str(dtype), normalize


def _training(device: str) -> Iterator[Check]:
    """A few steps with mixed precision, each optimizer's fused form."""
    for name in ("Adam", "AdamW", "SGD", "RMSprop"):

        def train(name: str = name) -> object:
            net = nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(32 * 16 * 16, 128), nn.SiLU(), nn.Dropout(0.1), nn.Linear(128, 10),
            ).to(device)  # fmt: skip
            fused = {"foreach": True} if name == "RMSprop" else {"fused": True}
            optimizer = getattr(torch.optim, name)(net.parameters(), lr=1e-3, **fused)
            scaler = torch.amp.GradScaler(device)
            for _ in range(5):
                x, y = torch.randn(64, 3, 32, 32, device=device), torch.randint(0, 10, (64,), device=device)
                with torch.autocast(device, torch.float16):
                    loss = F.cross_entropy(net(x), y)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            return loss, list(net.state_dict().values())

        yield name, train


GROUPS = (_convolutions, _attention, _recurrent, _normalizations, _training)
