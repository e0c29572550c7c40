"""File formats of other tools: MSCCL, Chakra, GOAL and ASTRA-sim.

Reading order: `operations` (the data of a recorded program), `goal`, `chakra`; then `msccl`,
`astra_sim`.
"""
