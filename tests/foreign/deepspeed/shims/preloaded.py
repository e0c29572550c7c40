"""Import deepspeed in the fork server of real processes, once instead of in every worker.

A worker's import takes 9 s of CPU time, most of the run on real processes. A test sees no
difference: a worker is a fork that has imported deepspeed. Simulated ranks have no fork server.
"""

import multiprocessing

multiprocessing.set_forkserver_preload(["deepspeed"])
