"""Flash attention as Triton kernels, written to be read.

They run on a GPU, and on a CPU in Triton's interpreter where ``TRITON_INTERPRET=1`` is
set before Triton is imported. Elsewhere, and for arguments they do not take, torch's own
kernels do the work.
"""

from attention_lib.kernels.flash import flash_attention, flash_attention_lse, runs_on

__all__ = ["flash_attention", "flash_attention_lse", "runs_on"]
