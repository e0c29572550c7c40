"""A script that strangers run on their GPUs: `simrank compare --kit`; see `assemble`."""
