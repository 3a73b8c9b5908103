# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prepares DeepEP (first generation) for an EFA adapter that the GPU rings; docs/deepep.md is the guide.

    buffer = deep_ep.Buffer(...)            # initialises NVSHMEM
    efa_gda_deepep.init_internode(num_channels, num_devices, buffer=buffer)
    ...
    efa_gda_deepep.finalize_internode()     # before the buffer is destroyed
"""

import ctypes
import importlib.util


def _library(path=None):
    """Returns the library that has the device state: DeepEP's extension, unless `path` names another file."""
    if path is None:
        found = importlib.util.find_spec("deep_ep_cpp")
        if found is None or found.origin is None:
            raise RuntimeError(
                "the module deep_ep_cpp was not found: install DeepEP from the tree of scripts/overlay_deepep.sh, "
                "or pass the path of the library that contains efa_device_state.cu")
        path = found.origin
    library = ctypes.CDLL(path)
    if not hasattr(library, "init_efa_device_state"):
        raise RuntimeError(
            f"{path} has no function init_efa_device_state: it was built without efa_device_state.cu; build DeepEP "
            "from the tree of scripts/overlay_deepep.sh")
    library.init_efa_device_state_at.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    library.efa_gda_nvshmem_last_error.restype = ctypes.c_char_p
    return library


def _check(library, code, what):
    if code != 0:
        text = library.efa_gda_nvshmem_last_error().decode(errors="replace")
        raise RuntimeError(f"{what} returned {code}: {text}")


def init_internode(num_channels, num_devices, library=None, buffer=None):
    """Opens this rank's queues and publishes the device state. All ranks must call it, after NVSHMEM's initialisation.

    `num_channels` is DeepEP's number of queue pairs to a rank, which the checklist of docs/deepep.md bounds;
    `num_devices` is the number of adapters that DeepEP sees. Both are virtual: each queue of this rank reaches all ranks.
    `buffer` is the deep_ep.Buffer, whose RDMA memory is registered; without it, the heap's chunk of a new allocation.
    """
    for name, number in (("num_channels", num_channels), ("num_devices", num_devices)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 1 << 16:
            raise ValueError(f"{name} is {number!r}; expected a number from 1 to 65535")
    loaded = _library(library)
    address = None
    if buffer is not None:
        import torch
        address = buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True).data_ptr()
    _check(loaded, loaded.init_efa_device_state_at(num_channels, num_devices, address), "init_efa_device_state")


def finalize_internode(library=None):
    """Destroys this rank's queues. All ranks must call it, when their kernels have ended."""
    loaded = _library(library)
    _check(loaded, loaded.finalize_efa_device_state(), "finalize_efa_device_state")
