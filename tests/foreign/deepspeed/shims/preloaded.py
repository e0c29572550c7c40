"""Import deepspeed in the fork server of real processes, once instead of in every worker.

A worker's import takes 9 s of CPU time, most of the reference run. The tests are as before: a worker
is a fork that has imported deepspeed and nothing else. On simulated ranks there is no fork server.
"""

import multiprocessing

multiprocessing.set_forkserver_preload(["deepspeed"])
