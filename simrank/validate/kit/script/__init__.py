"""Parts of `kit.py`, in the order in which `assemble` joins them; they need torch alone."""
