"""The driver that Triton asks for devices. There is one, the CPU; it is always active and has a single stream."""

import torch
from triton.backends import compiler, driver


class InterpretedDriver(driver.DriverBase):
    """Answers the questions of the interpreter and of vLLM. It launches nothing."""

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        return "void*"

    def get_current_target(self):
        return compiler.GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_device_interface(self):
        return torch.cpu

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=0):
        return 0

    def get_benchmarker(self):
        raise RuntimeError("interpreted kernels are not timed")

    def get_empty_cache_for_benchmark(self):
        return None

    def clear_cache(self, cache):
        pass
