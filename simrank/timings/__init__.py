"""Every timing of a program: a search over all that timing can decide.

A run decides in turn what simulated time decides otherwise (`run`), a search makes the runs with
the other decisions (`search`), and says whether the program ends the same in all of them.
"""
