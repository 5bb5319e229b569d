"""The compiler that Triton requires of every backend. It compiles nothing, because the interpreter runs the kernels."""

from triton.backends import compiler


class InterpretedBackend(compiler.BaseBackend):
    """The backend of the target ``cpu``."""

    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreted"

    def parse_options(self, options):
        return options

    def add_stages(self, stages, options, language):
        raise RuntimeError("this backend has no compiler: set TRITON_INTERPRET=1")

    def load_dialects(self, context):
        pass

    def get_module_map(self):
        return {}
