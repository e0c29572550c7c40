"""Import transformers and accelerate in the main program, whose modules all ranks share.

Otherwise each simulated rank executes them for itself, as deepspeed imports them: 4 s of CPU time a
rank. No test of the list changes what they keep.
"""

import accelerate  # noqa: F401 - as above
import transformers.modeling_utils
import transformers.models.opt.modeling_opt  # noqa: F401 - as above
